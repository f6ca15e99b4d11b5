"""Idempotency keys: a submit that is repeated with its key is accepted only once."""

from dataclasses import dataclass

import orjson
from sqlalchemy import Connection, delete, select
from sqlalchemy.dialects import postgresql, sqlite

from ..ledger.tables import idempotency_keys as _keys

# Printable ASCII: a UUID, or <domain>:<entity-id>:<epoch-ms> as the contracts document wants it.
KEY_PATTERN = r"[ -~]{1,255}"


@dataclass(frozen=True, slots=True)
class KeyUse:
    tenant_id: str
    key: str
    # SHA-256 of the request.
    fingerprint: str
    run_ids: tuple[str, ...]
    now: float


@dataclass(frozen=True, slots=True)
class Earlier:
    """An earlier submit with the same key."""

    fingerprint: str
    run_ids: tuple[str, ...]


def take_key(connection: Connection, use: KeyUse) -> Earlier | None:
    """Take the key for this submit, or return the submit that took it earlier. Waits for a concurrent submit."""
    while True:
        if _insert(connection, use):
            return None
        row = connection.execute(
            select(_keys.c.fingerprint, _keys.c.run_ids).where(
                _keys.c.tenant_id == use.tenant_id, _keys.c.key == use.key
            )
        ).first()
        if row is not None:  # else another process has just made it free
            return Earlier(row.fingerprint, tuple(orjson.loads(row.run_ids)))


def _insert(connection: Connection, use: KeyUse) -> bool:
    dialect_insert = sqlite.insert if connection.dialect.name == "sqlite" else postgresql.insert
    taken = connection.execute(
        dialect_insert(_keys)
        .values(
            tenant_id=use.tenant_id,
            key=use.key,
            fingerprint=use.fingerprint,
            run_ids=orjson.dumps(use.run_ids).decode(),
            created_at=use.now,
        )
        .on_conflict_do_nothing()
        .returning(_keys.c.key)
    ).first()
    return taken is not None


def forget_key(connection: Connection, use: KeyUse) -> None:
    """Free the key of a submit that was withdrawn."""
    connection.execute(delete(_keys).where(_keys.c.tenant_id == use.tenant_id, _keys.c.key == use.key))
