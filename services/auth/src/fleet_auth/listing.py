"""Selects, orders and pages API keys."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from .records import KeyRecord

# Creation time and id of the last key of a page; the newest keys come first.
CURSOR_PATTERN = r"^[0-9]{1,12}(\.[0-9]{1,9})?:[A-Za-z0-9-]{1,64}$"
_CURSOR = re.compile(CURSOR_PATTERN)


@dataclass(frozen=True, slots=True)
class KeyQuery:
    tenant_id: str | None = None
    include_revoked: bool = False
    limit: int = 100
    cursor: str | None = None


@dataclass(frozen=True, slots=True)
class KeyPage:
    records: list[KeyRecord]
    next_cursor: str | None


def select_keys(records: Iterable[KeyRecord], query: KeyQuery) -> KeyPage:
    before = _position(query.cursor) if query.cursor else None
    wanted = sorted(
        (
            record
            for record in records
            if (query.tenant_id is None or record.tenant_id == query.tenant_id)
            and (query.include_revoked or record.revoked_at is None)
            and (before is None or _place(record) < before)
        ),
        key=_place,
        reverse=True,
    )
    page = wanted[: query.limit]
    more = len(wanted) > len(page)
    return KeyPage(page, _cursor(page[-1]) if more else None)


def _place(record: KeyRecord) -> tuple[int, str]:
    # Whole microseconds: a cursor has to come back as exactly the same number.
    return round(record.created_at * 1_000_000), record.key_id


def _cursor(record: KeyRecord) -> str:
    moment, key_id = _place(record)
    return f"{moment // 1_000_000}.{moment % 1_000_000:06d}:{key_id}"


def _position(cursor: str) -> tuple[int, str]:
    if _CURSOR.fullmatch(cursor) is None:
        raise ValueError("no cursor of a list of keys")
    moment, _, key_id = cursor.partition(":")
    seconds, _, fraction = moment.partition(".")
    return int(seconds) * 1_000_000 + int(fraction[:6].ljust(6, "0")), key_id
