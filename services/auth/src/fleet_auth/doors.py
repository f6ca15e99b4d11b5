"""The door a request comes through: open to anybody, or to those who hold a key."""

from typing import Protocol

from fleet_contracts.names import ANONYMOUS_TENANT
from fleet_contracts.scopes import ALL_SCOPES
from fleet_kit.identity import Identity

from .errors import ApiKeyInvalid, ApiKeyRequired
from .keys import Keys


class Door(Protocol):
    def identify(self, api_key: str | None) -> Identity:
        """Who comes with this key, or a refusal."""


class OpenDoor:
    """Mode `none`: everybody is the same anonymous caller and may do everything."""

    def identify(self, api_key: str | None) -> Identity:
        return Identity(tenant_id=ANONYMOUS_TENANT, api_key_id=None, scopes=ALL_SCOPES)


class KeyDoor:
    """Mode `api_key`: only who holds a key that is known and not revoked."""

    def __init__(self, keys: Keys) -> None:
        self._keys = keys

    def identify(self, api_key: str | None) -> Identity:
        if not api_key:
            raise ApiKeyRequired()
        record = self._keys.find(api_key)
        if record is None or record.revoked_at is not None:
            raise ApiKeyInvalid()
        return Identity(tenant_id=record.tenant_id, api_key_id=record.key_id, scopes=frozenset(record.scopes))
