"""SQL that accepts runs and withdraws those that could not be sent, in batches for the group commit."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, delete, insert, select

from fleet_contracts.job import Job
from fleet_contracts.names import ANONYMOUS_TENANT
from fleet_contracts.status import RunStatus

from ..ledger.commit_retries import may_be_committed
from ..ledger.counting import Kind, count
from ..ledger.outbox import DISPATCH, INSERT_OUTBOX, WITHDRAW
from ..ledger.prepared import Inserting
from ..ledger.tables import documents as _documents
from ..ledger.tables import outbox as _outbox
from ..ledger.tables import runs as _runs
from .idempotency import Earlier, KeyUse, forget_key, take_key

_INSERT_RUN = Inserting(
    _runs,
    (
        "run_id", "tenant_id", "api_key_id", "flow_name", "tag", "tags", "status", "attempt", "workflow_yaml_sha256",
        "submitted_at", "updated_at", "heartbeat_at", "revision", "dispatch", "checked_at", "changed_at", "failures",
        "reopened", "kv_released", "not_before", "deadline_at", "rerun_of",
    ),
    executed_at="changed_at",
)  # fmt: skip
_INSERT_DOCUMENT = Inserting(_documents, ("run_id", "job"))


@dataclass(frozen=True, slots=True)
class NewRun:
    """A run to accept. `send_at` is when the relay may send it if the submitting process does not."""

    job: Job
    job_text: str
    tags_text: str
    send_at: float


@dataclass(frozen=True, slots=True)
class Acceptance:
    """Runs to accept together, all or none. With a key they are accepted once, however often they are sent."""

    runs: Sequence[NewRun]
    key: KeyUse | None = None


@dataclass(frozen=True, slots=True)
class Withdrawal:
    run_id: str
    now: float
    key: KeyUse | None = None


def accept(connection: Connection, acceptances: Sequence[Acceptance]) -> Sequence[Earlier | None]:
    """Accept runs: write their rows, jobs, outbox rows and counts in one transaction.

    Each result is None, or what was accepted earlier under the same key.
    """
    earlier = [_taken_earlier(connection, wanted) for wanted in acceptances]
    new = [run for wanted, before in zip(acceptances, earlier, strict=True) if before is None for run in wanted.runs]
    if may_be_committed(connection):
        there = _those_of(connection, [run.job.run_id for run in new])
        new = [run for run in new if run.job.run_id not in there]
    pending = RunStatus.PENDING.value
    # Read inside the transaction: readers that follow changes rely on it. PostgreSQL reads its own clock again when
    # it executes the statement. Before that this process may be paused, and no replica can see the transaction.
    changed_at = time.time()
    rows = []
    for run in new:
        job = run.job
        now = job.submitted_at
        rows.append(
            (
                job.run_id, _tenant_of(job), job.api_key_id, job.flow_name, job.tag, run.tags_text,
                pending, 0, job.workflow_yaml_sha256, now, now, now, 0, 1, now, changed_at, 0, 0, 0,
                job.not_before, job.deadline_at, job.rerun_of,
            )
        )  # fmt: skip
    _INSERT_RUN.execute(connection, rows)
    _INSERT_DOCUMENT.execute(connection, [(run.job.run_id, run.job_text) for run in new])
    INSERT_OUTBOX.execute(connection, [(DISPATCH, run.job.run_id, 1, run.send_at) for run in new])
    count(connection, ((Kind(_tenant_of(r.job), r.job.flow_name, r.job.tag), RunStatus.PENDING, 1) for r in new))
    return earlier


def _taken_earlier(connection: Connection, wanted: Acceptance) -> Earlier | None:
    if wanted.key is None or (before := take_key(connection, wanted.key)) is None:
        return None
    # An earlier try of this same acceptance may have been committed although its answer was lost.
    return None if may_be_committed(connection) and before.run_ids == wanted.key.run_ids else before


def withdraw(connection: Connection, withdrawals: Sequence[Withdrawal]) -> Sequence[bool]:
    """Withdraw runs whose job was never sent. False: the job may have been sent, so the run stays accepted.

    The outbox row of the first dispatch decides: the relay takes it, in a transaction of its own, before it sends
    the job. The relay removes a snapshot that may have reached JetStream; without a job no worker executes it.
    """
    results = []
    for withdrawal in withdrawals:
        run_id = withdrawal.run_id
        waiting = select(_runs.c.run_id).where(_runs.c.run_id == run_id, _runs.c.status == RunStatus.PENDING)
        untaken = connection.execute(
            delete(_outbox)
            .where(_outbox.c.run_id.in_(waiting), _outbox.c.kind == DISPATCH, _outbox.c.due_since.is_(None))
            .returning(_outbox.c.id)
        ).first()
        # No such run: an earlier try withdrew it, and the answer of that commit was lost.
        results.append(untaken is not None or not _those_of(connection, [run_id]))
        if untaken is None:
            continue
        gone = connection.execute(
            delete(_runs)
            .where(_runs.c.run_id == run_id)
            .returning(_runs.c.tenant_id, _runs.c.flow_name, _runs.c.tag, _runs.c.status)
        ).one()
        connection.execute(delete(_documents).where(_documents.c.run_id == run_id))
        connection.execute(insert(_outbox).values(kind=WITHDRAW, run_id=run_id, dispatch=1, due_at=withdrawal.now))
        if withdrawal.key is not None:
            forget_key(connection, withdrawal.key)
        count(connection, [(Kind(gone.tenant_id, gone.flow_name, gone.tag), RunStatus(gone.status), -1)])
    return results


def _those_of(connection: Connection, run_ids: Sequence[str]) -> set[str]:
    return set(connection.execute(select(_runs.c.run_id).where(_runs.c.run_id.in_(run_ids))).scalars())


def _tenant_of(job: Job) -> str:
    return job.tenant_id or ANONYMOUS_TENANT
