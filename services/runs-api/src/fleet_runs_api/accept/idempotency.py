"""Idempotency keys: a submit that is repeated with its key is accepted only once."""

from dataclasses import dataclass

import orjson
from sqlalchemy import delete, select

from ..ledger.sql.transaction import Transaction
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


def take_key(transaction: Transaction, use: KeyUse) -> Earlier | None:
    """Take the key for this submit, or return the submit that took it earlier. Waits for a concurrent submit."""
    while True:
        if _insert(transaction, use):
            return None
        row = transaction.execute(
            select(_keys.c.fingerprint, _keys.c.run_ids).where(
                _keys.c.tenant_id == use.tenant_id, _keys.c.key == use.key
            )
        ).first()
        if row is not None:  # else another process has just made it free
            return Earlier(row.fingerprint, tuple(orjson.loads(row.run_ids)))


def _insert(transaction: Transaction, use: KeyUse) -> bool:
    row = {
        "tenant_id": use.tenant_id,
        "key": use.key,
        "fingerprint": use.fingerprint,
        "run_ids": orjson.dumps(use.run_ids).decode(),
        "created_at": use.now,
    }
    taken = transaction.execute(transaction.insert_if_new(_keys).values(row).returning(_keys.c.key))
    return taken.first() is not None


def forget_key(transaction: Transaction, use: KeyUse) -> None:
    """Free the key of a submit that was withdrawn."""
    transaction.execute(delete(_keys).where(_keys.c.tenant_id == use.tenant_id, _keys.c.key == use.key))
