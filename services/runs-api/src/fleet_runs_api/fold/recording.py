"""Records snapshots from KV in the ledger, together with the resulting attempts, retries and counts."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from sqlalchemy import select

from fleet_contracts.snapshot import RunSnapshot
from fleet_contracts.status import RunStatus
from fleet_contracts.trace_context import TraceContext
from fleet_kit.nats.stores.documents import Stored

from ..ledger.documents import KEEP_SNAPSHOT
from ..ledger.outbox import queue_again
from ..ledger.rows import RECORD_COLUMNS, run_record
from ..ledger.sql.prepared import updating
from ..ledger.sql.transaction import Transaction
from ..ledger.tables import runs as _runs
from .history import note_attempts, note_lost_attempts
from .rules import Change, adds_lost_attempts, fold

_APPLY_CHANGE = updating(_runs, (*Change._fields, "changed_at"), keys=("run_id",))
_CHECK_SOON = updating(_runs, ("checked_at",), keys=("run_id",))


@dataclass(frozen=True, slots=True)
class Observation:
    """A snapshot as it was seen in KV."""

    snapshot: RunSnapshot
    revision: int
    text: str
    # The trace in which it was written, if any.
    trace: TraceContext | None = None

    @classmethod
    def of(cls, stored: Stored[RunSnapshot]) -> Self:
        return cls(stored.value, stored.revision, stored.value.encode().decode())


def record(transaction: Transaction, groups: Sequence[Sequence[Observation]]) -> Sequence[Sequence[Observation]]:
    """Fold groups of snapshots into the ledger. Returns the snapshots of each group that changed it."""
    observations = [observation for group in groups for observation in group]
    wanted = sorted({o.snapshot.run_id for o in observations})
    rows = transaction.rows(
        select(*RECORD_COLUMNS).where(_runs.c.run_id.in_(wanted)).order_by(_runs.c.run_id).with_for_update(),
        run_record,
    )
    known = {run.run_id: run.known for run in rows}
    kinds = {run.run_id: run.kind for run in rows}

    now = time.time()
    changed: set[int] = set()
    latest: dict[str, tuple[Change, Observation]] = {}
    to_retry: dict[str, float] = {}
    late: list[RunSnapshot] = []
    for observation in observations:
        run_id = observation.snapshot.run_id
        before = known.get(run_id)
        change = fold(before, observation.snapshot, observation.revision, now=now) if before else None
        if before is None or change is None:
            if before is not None and adds_lost_attempts(before, observation.snapshot, observation.revision):
                late.append(observation.snapshot)
            continue
        changed.add(id(observation))
        latest[run_id] = (change, observation)
        transaction.counts.move(kinds[run_id], before.status, change.status)
        if change.status is RunStatus.PENDING and observation.snapshot.retry_of_attempt == change.attempt:
            to_retry[run_id] = change.not_before or now
        known[run_id] = change.known
    transaction.write(_APPLY_CHANGE, [(*c, now, run_id) for run_id, (c, _) in latest.items()])
    transaction.write(KEEP_SNAPSHOT, [(seen.text, run_id) for run_id, (_, seen) in latest.items()])
    for _, seen in latest.values():
        if seen.snapshot.earlier_attempts:
            note_attempts(transaction, seen.snapshot)
    for run_id, due_at in to_retry.items():
        if not known[run_id].status.is_terminal:
            queue_again(transaction, run_id, due_at=due_at, now=now)
    for snapshot in late:
        note_lost_attempts(transaction, snapshot)
    return [[observation for observation in group if id(observation) in changed] for group in groups]


def note_removed(transaction: Transaction, groups: Sequence[Sequence[str]]) -> Sequence[None]:
    """Runs whose snapshots were removed from KV: the sweeper looks at the unfinished ones of them next."""
    transaction.write(_CHECK_SOON, [(0.0, run_id) for run_id in sorted({one for group in groups for one in group})])
    return [None] * len(groups)
