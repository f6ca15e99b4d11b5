"""Issuing and revoking keys: the only writes to the bucket."""

import logging
import secrets
import time
from dataclasses import dataclass

from fleet_contracts.scopes import Scope
from fleet_kit.logs.events import service_call
from fleet_kit.nats.link import WrongRevision
from fleet_kit.nats.stores.documents import Documents

from .errors import KeyContested, KeyNotFound
from .keys import Keys
from .records import DEFAULT_SCOPES, KeyRecord, hash_key, is_key_id, key_text, pepper_mark

logger = logging.getLogger(__name__)

_SECRET_BYTES = 32
_ID_BYTES = 8
_MOST_TRIES = 10


@dataclass(frozen=True, slots=True)
class KeyRequest:
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


async def issue(keys: Keys, wanted: KeyRequest, *, created_by: str | None = None) -> IssuedKey:
    keys.link.require()
    key_id = secrets.token_hex(_ID_BYTES)
    api_key = key_text(key_id, secrets.token_urlsafe(_SECRET_BYTES))
    record = KeyRecord(
        key_id=key_id,
        tenant_id=wanted.tenant_id,
        key_hash=hash_key(api_key, keys.pepper),
        scopes=sorted(set(wanted.scopes)),
        name=wanted.name,
        created_at=time.time(),
        created_by=created_by,
        expires_at=wanted.expires_at,
        pepper=pepper_mark(keys.pepper),
    )
    with service_call(logger, "auth", "issue_key", entity_id=f"key:{key_id}") as call:
        call["tenant_id"] = wanted.tenant_id
        await Documents(keys.bucket, KeyRecord).write(key_id, record, revision=0)
    keys.note(record)
    return IssuedKey(api_key, record)


async def revoke(keys: Keys, key_id: str) -> KeyRecord:
    """Revoke a key; one that has been revoked already stays as it is."""
    with service_call(logger, "auth", "revoke_key", entity_id=f"key:{key_id}"):
        if not is_key_id(key_id):
            raise KeyNotFound(key_id=key_id)
        keys.link.require()
        try:
            stored = await Documents(keys.bucket, KeyRecord).change(
                key_id,
                lambda record: None if record is None else record.revoke(now=time.time()),
                linearizable=True,
                lenient=True,
                most_tries=_MOST_TRIES,
            )
        except WrongRevision as error:
            raise KeyContested(key_id=key_id) from error
        if stored is None:
            raise KeyNotFound(key_id=key_id)
        keys.note(stored.value)
        return stored.value
