"""SQL that accepts runs and withdraws those that could not be sent, in batches for the group commit."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import orjson
from sqlalchemy import delete, insert, select

from fleet_contracts.status import RunStatus

from ..ledger.documents import NewRun
from ..ledger.outbox import DISPATCH, INSERT_OUTBOX, WITHDRAW
from ..ledger.rows import RECORD_COLUMNS, run_record
from ..ledger.sql.prepared import Inserting
from ..ledger.sql.transaction import Transaction, one_by_one
from ..ledger.tables import documents as _documents
from ..ledger.tables import outbox as _outbox
from ..ledger.tables import runs as _runs
from .idempotency import Earlier, KeyUse, forget_key, take_key


class _AcceptedRow(NamedTuple):
    """The row of a run as it is accepted."""

    run_id: str
    tenant_id: str
    api_key_id: str | None
    flow_name: str
    tag: str
    # JSON
    tags: str
    workflow_yaml_sha256: str | None
    submitted_at: float
    updated_at: float
    heartbeat_at: float
    checked_at: float
    changed_at: float
    not_before: float | None
    deadline_at: float | None
    rerun_of: str | None
    status: str = RunStatus.PENDING.value
    attempt: int = 0
    revision: int = 0
    dispatch: int = 1
    failures: int = 0
    reopened: int = 0
    kv_released: int = 0


_INSERT_RUN = Inserting(_runs, _AcceptedRow._fields, executed_at="changed_at")
_INSERT_DOCUMENT = Inserting(_documents, ("run_id", "job"))


@dataclass(frozen=True, slots=True)
class Acceptance:
    """Runs to accept together, all or none. With a key they are accepted once, however often they are sent."""

    runs: Sequence[NewRun]
    # When the relay may send them if the submitting process does not; those with a time of their own then.
    send_at: float
    key: KeyUse | None = None


@dataclass(frozen=True, slots=True)
class Withdrawal:
    run_id: str
    now: float
    key: KeyUse | None = None


def accept(transaction: Transaction, acceptances: Sequence[Acceptance]) -> Sequence[Earlier | None]:
    """Accept runs: write their rows, jobs, outbox rows and counts in one transaction.

    Each result is None, or what was accepted earlier under the same key.
    """
    earlier = [_taken_earlier(transaction, wanted) for wanted in acceptances]
    fresh = [wanted for wanted, before in zip(acceptances, earlier, strict=True) if before is None]
    new = [(run, run.job.not_before or wanted.send_at) for wanted in fresh for run in wanted.runs]
    if transaction.may_be_committed:
        there = _existing(transaction, [run.job.run_id for run, _ in new])
        new = [(run, send_at) for run, send_at in new if run.job.run_id not in there]
    # Read inside the transaction: readers that follow changes rely on it. PostgreSQL reads its own clock again when
    # it executes the statement. Before that this process may be paused, and no replica can see the transaction.
    changed_at = time.time()
    transaction.write(_INSERT_RUN, [_row_of(run, changed_at) for run, _ in new])
    transaction.write(_INSERT_DOCUMENT, [(run.job.run_id, run.payload.decode()) for run, _ in new])
    transaction.write(INSERT_OUTBOX, [(DISPATCH, run.job.run_id, 1, send_at) for run, send_at in new])
    for run, _ in new:
        transaction.counts.add(run.kind, RunStatus.PENDING)
    return earlier


def _row_of(run: NewRun, changed_at: float) -> _AcceptedRow:
    job = run.job
    return _AcceptedRow(
        run_id=job.run_id,
        tenant_id=run.kind.tenant_id,
        api_key_id=job.api_key_id,
        flow_name=job.flow_name,
        tag=job.tag,
        tags=orjson.dumps(job.tags).decode(),
        workflow_yaml_sha256=job.workflow_yaml_sha256,
        submitted_at=job.submitted_at,
        updated_at=job.submitted_at,
        heartbeat_at=job.submitted_at,
        checked_at=job.submitted_at,
        changed_at=changed_at,
        not_before=job.not_before,
        deadline_at=job.deadline_at,
        rerun_of=job.rerun_of,
    )


def _taken_earlier(transaction: Transaction, wanted: Acceptance) -> Earlier | None:
    if wanted.key is None or (before := take_key(transaction, wanted.key)) is None:
        return None
    # An earlier try of this same acceptance may have been committed although its answer was lost.
    return None if transaction.may_be_committed and before.run_ids == wanted.key.run_ids else before


@one_by_one
def withdraw(transaction: Transaction, withdrawal: Withdrawal) -> bool:
    """Withdraw a run whose job was never sent. False: the job may have been sent, so the run stays accepted.

    The outbox row of the first dispatch decides: the relay takes it, in a transaction of its own, before it sends
    the job. The relay removes a snapshot that may have reached JetStream; without a job no worker executes it.
    """
    run_id = withdrawal.run_id
    waiting = select(_runs.c.run_id).where(_runs.c.run_id == run_id, _runs.c.status == RunStatus.PENDING)
    untaken = transaction.execute(
        delete(_outbox)
        .where(_outbox.c.run_id.in_(waiting), _outbox.c.kind == DISPATCH, _outbox.c.due_since.is_(None))
        .returning(_outbox.c.id)
    ).first()
    if untaken is None:
        # True without a run: an earlier try withdrew it, and the answer of that commit was lost.
        return not _existing(transaction, [run_id])
    [run] = transaction.rows(delete(_runs).where(_runs.c.run_id == run_id).returning(*RECORD_COLUMNS), run_record)
    transaction.execute(delete(_documents).where(_documents.c.run_id == run_id))
    transaction.execute(insert(_outbox).values(kind=WITHDRAW, run_id=run_id, dispatch=1, due_at=withdrawal.now))
    if withdrawal.key is not None:
        forget_key(transaction, withdrawal.key)
    transaction.counts.add(run.kind, run.known.status, -1)
    return True


def _existing(transaction: Transaction, run_ids: Sequence[str]) -> set[str]:
    return set(transaction.execute(select(_runs.c.run_id).where(_runs.c.run_id.in_(run_ids))).scalars())
