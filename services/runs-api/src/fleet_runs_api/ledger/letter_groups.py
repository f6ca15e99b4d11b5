"""Counts the open letters of each kind: collected during a transaction and written once before it commits."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from sqlalchemy import Executable, Table, case, delete, update
from sqlalchemy.dialects import postgresql, sqlite

from .tables import dead_letter_groups as _groups

Insert = sqlite.Insert | postgresql.Insert


class GroupKey(NamedTuple):
    tenant_id: str
    fingerprint: str


@dataclass(slots=True)
class _Change:
    """The changes of one transaction to one group."""

    entered: int = 0
    left: int = 0
    first_at: float = 0.0
    last_at: float = 0.0
    reason: str = ""
    flow_name: str | None = None
    error_type: str = ""
    error: str | None = None


class LetterGroups:
    """How one transaction changes the groups of letters."""

    def __init__(self) -> None:
        self._changes: dict[GroupKey, _Change] = {}

    def entered(self, rows: Iterable[Mapping[str, Any]]) -> None:
        for row in rows:
            change = self._changes.setdefault(GroupKey(row["tenant_id"], row["fingerprint"]), _Change())
            at: float = row["at"]
            change.first_at = min(change.first_at, at) if change.entered else at
            if not change.entered or at >= change.last_at:
                change.last_at = at
                change.error = row["error"]
            change.reason, change.flow_name, change.error_type = row["reason"], row["flow_name"], row["error_type"]
            change.entered += 1

    def left(self, keys: Iterable[GroupKey]) -> None:
        for key in keys:
            self._changes.setdefault(key, _Change()).left += 1

    def statements(self, insert: Callable[[Table], Insert]) -> Iterator[Executable]:
        for key, change in sorted(self._changes.items()):
            if change.entered:
                yield _adding(insert(_groups), key, change)
            if change.left:
                of_key = (_groups.c.tenant_id == key.tenant_id, _groups.c.fingerprint == key.fingerprint)
                yield update(_groups).where(*of_key).values(total=_groups.c.total - change.left)
                yield delete(_groups).where(*of_key, _groups.c.total <= 0)


def _adding(insert: Insert, key: GroupKey, change: _Change) -> Executable:
    statement = insert.values(
        tenant_id=key.tenant_id,
        fingerprint=key.fingerprint,
        reason=change.reason,
        flow_name=change.flow_name,
        error_type=change.error_type,
        error=change.error,
        total=change.entered,
        first_at=change.first_at,
        last_at=change.last_at,
    )
    new = statement.excluded
    is_newest = new.last_at >= _groups.c.last_at
    return statement.on_conflict_do_update(
        index_elements=["tenant_id", "fingerprint"],
        set_={
            "total": _groups.c.total + new.total,
            "first_at": case((new.first_at < _groups.c.first_at, new.first_at), else_=_groups.c.first_at),
            "last_at": case((is_newest, new.last_at), else_=_groups.c.last_at),
            "error": case((is_newest, new.error), else_=_groups.c.error),
        },
    )
