"""Selects, orders and pages API keys."""

from collections.abc import Iterable

from .records import KeyRecord

# Creation time, in microseconds, and id of the last key of a page.
CURSOR_PATTERN = r"^[0-9]{1,18}:[A-Za-z0-9-]{1,64}$"


def select_keys(
    records: Iterable[KeyRecord],
    *,
    tenant_id: str | None = None,
    include_revoked: bool = False,
    limit: int | None = None,
    cursor: str | None = None,
) -> tuple[list[KeyRecord], str | None]:
    """A page of keys, the newest first, and the cursor of the next page; None if this is the last."""
    before = _position(cursor) if cursor else None
    wanted = sorted(
        (
            record
            for record in records
            if tenant_id in (None, record.tenant_id)
            and (include_revoked or record.revoked_at is None)
            and (before is None or _place(record) < before)
        ),
        key=_place,
        reverse=True,
    )
    page = wanted[:limit]
    return page, _cursor(page[-1]) if len(wanted) > len(page) else None


def _place(record: KeyRecord) -> tuple[int, str]:
    # Whole microseconds: a cursor has to come back as exactly the same number.
    return round(record.created_at * 1_000_000), record.key_id


def _cursor(record: KeyRecord) -> str:
    moment, key_id = _place(record)
    return f"{moment}:{key_id}"


def _position(cursor: str) -> tuple[int, str]:
    moment, _, key_id = cursor.partition(":")
    return int(moment), key_id
