"""The record of an API key: tenant, scopes, expiry, and a hash instead of the key itself."""

import hashlib
import hmac
import re
from enum import StrEnum
from typing import Annotated

from pydantic import AfterValidator, SecretStr, StringConstraints

from fleet_contracts.messages import Document
from fleet_contracts.names import ANONYMOUS_TENANT, LINE_PATTERN
from fleet_contracts.scopes import Scope

DEFAULT_SCOPES = (Scope.RUNS_READ, Scope.RUNS_WRITE)

# A key contains the id of its record; scanners for leaked secrets recognise the prefix.
_KEY = re.compile(r"pyoco_(?P<key_id>[A-Za-z0-9-]{1,64})_(?P<secret>[A-Za-z0-9_-]{32,128})")
_KEY_ID = re.compile(r"[A-Za-z0-9-]{1,64}")


def _refuse_anonymous(tenant_id: str) -> str:
    if tenant_id == ANONYMOUS_TENANT:
        raise ValueError(f"{ANONYMOUS_TENANT} is the tenant of callers without a key; choose another name")
    return tenant_id


# All of these travel in HTTP headers; the id is a key in KV, too.
KeyId = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9-]{1,64}$")]
TenantId = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.-]{1,64}$"), AfterValidator(_refuse_anonymous)]
KeyName = Annotated[str, StringConstraints(min_length=1, max_length=100, pattern=LINE_PATTERN)]
# A newer version may know more scopes: the record keeps them, and nothing here checks them.
GrantedScope = Annotated[str, StringConstraints(pattern=r"^[a-z]+(:[a-z]+)?$")]


class KeyState(StrEnum):
    ACTIVE = "active"
    REVOKED = "revoked"
    EXPIRED = "expired"


class KeyRecord(Document):
    key_id: KeyId
    tenant_id: TenantId
    key_hash: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
    scopes: list[GrantedScope] = []
    # What the key is for, in its issuer's words.
    name: KeyName | None = None
    created_at: float
    # The admin key that issued it over HTTP; none: an operator did on the command line.
    created_by: KeyId | None = None
    expires_at: float | None = None
    revoked_at: float | None = None
    # Identifies the pepper without revealing it: see `pepper_mark`.
    pepper: str | None = None

    def state_at(self, now: float) -> KeyState:
        if self.revoked_at is not None:
            return KeyState.REVOKED
        if self.expires_at is not None and self.expires_at <= now:
            return KeyState.EXPIRED
        return KeyState.ACTIVE

    def revoke(self, *, now: float) -> "KeyRecord":
        """The record as revoked; the time of the first revocation is kept."""
        return self if self.revoked_at is not None else self.model_copy(update={"revoked_at": now})

    def matches(self, api_key: str, pepper: SecretStr | None) -> bool:
        return hmac.compare_digest(self.key_hash, hash_key(api_key, pepper))


def is_key_id(text: str) -> bool:
    return _KEY_ID.fullmatch(text) is not None


def key_text(key_id: str, secret: str) -> str:
    return f"pyoco_{key_id}_{secret}"


def key_id_of(api_key: str) -> str | None:
    """The key id inside an API key; None if it has another format."""
    found = _KEY.fullmatch(api_key)
    return found["key_id"] if found else None


def hash_key(api_key: str, pepper: SecretStr | None) -> str:
    """The hash of a key. Keys are long and random, so one round is enough; the pepper makes it an HMAC."""
    if pepper is None:
        return hashlib.sha256(api_key.encode()).hexdigest()
    return hmac.digest(pepper.get_secret_value().encode(), api_key.encode(), "sha256").hex()


def pepper_mark(pepper: SecretStr | None) -> str | None:
    """A short fingerprint of the pepper: it distinguishes a key of another pepper from a wrong key."""
    return None if pepper is None else hash_key("pyoco-fleet pepper", pepper)[:8]
