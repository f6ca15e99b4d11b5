"""Records snapshots from KV in the ledger, together with the resulting attempts, retries and counts."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, select

from fleet_contracts.snapshot import RunSnapshot
from fleet_contracts.status import RunStatus
from fleet_contracts.trace_context import TraceContext

from ..ledger.counting import Kind, count
from ..ledger.documents import KEEP_SNAPSHOT
from ..ledger.known import KNOWN_COLUMNS, Known
from ..ledger.outbox import queue_again
from ..ledger.prepared import Updating
from ..ledger.tables import runs as _runs
from .history import note_attempts, note_lost_attempts
from .rules import Change, fold, tells_of_lost_attempts

_CHANGE_COLUMNS = (*Change.__dataclass_fields__, "changed_at")
_APPLY_CHANGE = Updating(_runs, _CHANGE_COLUMNS, keys=("run_id",))


@dataclass(frozen=True, slots=True)
class Observation:
    """A snapshot as it was seen in KV."""

    snapshot: RunSnapshot
    revision: int
    text: str
    # The trace in which it was written, if any.
    trace: TraceContext | None = None


def record(connection: Connection, groups: Sequence[Sequence[Observation]]) -> Sequence[Sequence[Observation]]:
    """Fold groups of snapshots into the ledger. Returns the snapshots of each group that changed it."""
    observations = [observation for group in groups for observation in group]
    wanted = sorted({o.snapshot.run_id for o in observations})
    columns = ("run_id", "tenant_id", "flow_name", "tag", *KNOWN_COLUMNS)
    rows = connection.execute(
        select(*(_runs.c[name] for name in columns))
        .where(_runs.c.run_id.in_(wanted))
        .order_by(_runs.c.run_id)
        .with_for_update()
    )
    known: dict[str, Known] = {}
    kinds: dict[str, Kind] = {}
    for row in rows:
        known[row.run_id] = Known.of(row)
        kinds[row.run_id] = Kind(row.tenant_id, row.flow_name, row.tag)

    now = time.time()
    changed: set[int] = set()
    latest: dict[str, tuple[Change, Observation]] = {}
    moves: list[tuple[Kind, RunStatus, int]] = []
    to_retry: dict[str, float] = {}
    late: list[RunSnapshot] = []
    for observation in observations:
        run_id = observation.snapshot.run_id
        before = known.get(run_id)
        change = fold(before, observation.snapshot, observation.revision, now=now) if before else None
        if before is None or change is None:
            if before is not None and tells_of_lost_attempts(before, observation.snapshot, observation.revision):
                late.append(observation.snapshot)
            continue
        changed.add(id(observation))
        latest[run_id] = (change, observation)
        if change.status is not before.status:
            moves += [(kinds[run_id], before.status, -1), (kinds[run_id], change.status, 1)]
        if change.status is RunStatus.PENDING and change.failures > before.failures:
            to_retry[run_id] = change.not_before or now
        known[run_id] = Known.of(change)
    if latest:
        _APPLY_CHANGE.execute(connection, [_change_row(run_id, c, now) for run_id, (c, _) in latest.items()])
        KEEP_SNAPSHOT.execute(connection, [(seen.text, run_id) for run_id, (_, seen) in latest.items()])
        for _, seen in latest.values():
            if seen.snapshot.earlier_attempts:
                note_attempts(connection, seen.snapshot)
        for run_id, due_at in to_retry.items():
            if not known[run_id].status.is_terminal:
                queue_again(connection, run_id, due_at=due_at, now=now)
        count(connection, moves)
    for snapshot in late:
        note_lost_attempts(connection, snapshot)
    return [[observation for observation in group if id(observation) in changed] for group in groups]


def _change_row(run_id: str, change: Change, now: float) -> tuple[Any, ...]:
    return (*(getattr(change, name) for name in Change.__dataclass_fields__), now, run_id)
