"""Issuing and revoking keys: the only writes to the bucket."""

import logging
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass

from pydantic import SecretStr

from fleet_contracts.scopes import Scope
from fleet_kit.logs.events import service_call
from fleet_kit.nats.documents import Documents
from fleet_kit.nats.kv import Bucket
from fleet_kit.nats.link import NatsLink, WrongRevision

from .errors import KeyContested, KeyNotFound
from .keys import Keys
from .records import DEFAULT_SCOPES, KeyRecord, hash_key, is_key_id, key_text, pepper_mark

logger = logging.getLogger(__name__)

_SECRET_BYTES = 32
_ID_BYTES = 8
_MOST_TRIES = 10


@dataclass(frozen=True, slots=True)
class Wish:
    """The properties of a new key."""

    tenant_id: str
    scopes: tuple[Scope, ...] = DEFAULT_SCOPES
    name: str | None = None
    expires_at: float | None = None


@dataclass(frozen=True, slots=True)
class IssuedKey:
    """A new key in plain text, which is known at this moment only, and its record."""

    api_key: str
    record: KeyRecord


class KeyIssuer:
    def __init__(
        self,
        link: NatsLink,
        bucket: str,
        keys: Keys,
        *,
        pepper: SecretStr | None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._link = link
        self._documents = Documents(Bucket(link, bucket), KeyRecord)
        self._keys = keys
        self._pepper = pepper
        self._clock = clock

    async def issue(self, wish: Wish, *, created_by: str | None = None) -> IssuedKey:
        self._link.require()
        key_id = secrets.token_hex(_ID_BYTES)
        api_key = key_text(key_id, secrets.token_urlsafe(_SECRET_BYTES))
        record = KeyRecord(
            key_id=key_id,
            tenant_id=wish.tenant_id,
            key_hash=hash_key(api_key, self._pepper),
            scopes=sorted(set(wish.scopes)),
            name=wish.name,
            created_at=self._clock(),
            created_by=created_by,
            expires_at=wish.expires_at,
            pepper=pepper_mark(self._pepper),
        )
        with service_call(logger, "auth", "issue_key", entity_id=f"key:{key_id}") as call:
            call["tenant_id"] = wish.tenant_id
            await self._documents.bucket.create(key_id, record.encode())
        self._keys.note(record)
        return IssuedKey(api_key, record)

    async def revoke(self, key_id: str) -> KeyRecord:
        """Revoke a key; one that has been revoked already stays as it is."""
        with service_call(logger, "auth", "revoke_key", entity_id=f"key:{key_id}"):
            if not is_key_id(key_id):
                raise KeyNotFound(key_id=key_id)
            self._link.require()
            try:
                stored = await self._documents.change(
                    key_id,
                    lambda record: None if record is None else record.revoke(now=self._clock()),
                    linearizable=True,
                    lenient=True,
                    most_tries=_MOST_TRIES,
                )
            except WrongRevision as error:
                raise KeyContested(key_id=key_id) from error
            if stored is None:
                raise KeyNotFound(key_id=key_id)
            self._keys.note(stored.value)
            return stored.value
