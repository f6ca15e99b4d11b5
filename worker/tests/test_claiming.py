"""Who may execute a job: the rule as a table."""

import pytest

from fleet_contracts.job import Job
from fleet_contracts.snapshot import RunSnapshot
from fleet_contracts.status import RunStatus
from fleet_worker.job.claims import Decision, Holder, decide
from fleet_worker.job.disposition import AlreadyEnded, HeldElsewhere, NoClaim, NotYet, RunMissing

JOB = Job(run_id="r1", flow_name="hello", tag="default", submitted_at=1.0)
PENDING = RunSnapshot.pending(JOB, now=1.0)
OURS = PENDING.claim(worker_id="w1", worker_instance_id="me", ack_subject="a", now=2.0)
THEIRS = PENDING.claim(worker_id="w2", worker_instance_id="other", ack_subject="a", now=2.0)
NOW = 100.0
SCHEDULED = PENDING.model_copy(update={"not_before": NOW + 60})
EXPIRED = PENDING.model_copy(update={"deadline_at": NOW - 1})
COMPLETED = PENDING.finish(RunStatus.COMPLETED, now=3.0)
FAILED = THEIRS.finish(RunStatus.FAILED, now=3.0)
CANCELLED = THEIRS.finish(RunStatus.CANCELLED, now=3.0)
MISSING = RunMissing("no snapshot of this run exists", given_up=False)
# A worker that speaks only the spec names itself but not its life.
FOREIGN = PENDING.model_copy(update={"status": RunStatus.RUNNING, "worker_id": "peer"})


@pytest.mark.parametrize(
    ("snapshot", "num_delivered", "holder", "expected"),
    [
        (None, 1, Holder.UNWATCHED, MISSING),
        (None, 2, Holder.UNWATCHED, MISSING),
        (None, 3, Holder.UNWATCHED, RunMissing(MISSING.error, given_up=True)),
        (PENDING, 1, Holder.UNWATCHED, Decision.CLAIM),
        (PENDING, 9, Holder.UNWATCHED, Decision.CLAIM),
        (COMPLETED, 1, Holder.UNWATCHED, AlreadyEnded(COMPLETED)),
        (FAILED, 2, Holder.UNWATCHED, AlreadyEnded(FAILED)),
        (CANCELLED, 2, Holder.SILENT, AlreadyEnded(CANCELLED)),
        (PENDING.request_cancel(by="ada", now=3.0), 1, Holder.UNWATCHED, Decision.CANCEL),
        (THEIRS, 2, Holder.UNWATCHED, Decision.WATCH),
        (THEIRS, 2, Holder.ALIVE, HeldElsewhere(5.0)),
        (THEIRS, 2, Holder.SILENT, Decision.TAKE_OVER),
        (FOREIGN, 2, Holder.UNWATCHED, Decision.WATCH),
        (FOREIGN, 2, Holder.SILENT, Decision.TAKE_OVER),
        (THEIRS.request_cancel(by="ada", now=3.0), 2, Holder.UNWATCHED, Decision.WATCH),
        (THEIRS.request_cancel(by="ada", now=3.0), 2, Holder.ALIVE, HeldElsewhere(5.0)),
        (THEIRS.request_cancel(by="ada", now=3.0), 2, Holder.SILENT, Decision.CANCEL),
        # Ours, but no longer in hand: its end could not be recorded, so it is executed again.
        (OURS, 2, Holder.UNWATCHED, Decision.CLAIM),
        (THEIRS.hand_back(now=3.0, interrupted=True), 2, Holder.UNWATCHED, Decision.CLAIM),
        (SCHEDULED, 1, Holder.UNWATCHED, NotYet(60.0)),
        (PENDING.model_copy(update={"not_before": NOW - 1}), 1, Holder.UNWATCHED, Decision.CLAIM),
        # The clocks of two machines differ a little.
        (PENDING.model_copy(update={"not_before": NOW + 0.04}), 1, Holder.UNWATCHED, Decision.CLAIM),
        (THEIRS.model_copy(update={"not_before": NOW + 60}), 2, Holder.SILENT, Decision.TAKE_OVER),
        (SCHEDULED.request_cancel(by="ada", now=3.0), 1, Holder.UNWATCHED, Decision.CANCEL),
        (EXPIRED, 1, Holder.UNWATCHED, Decision.EXPIRE),
        (PENDING.model_copy(update={"deadline_at": NOW + 1}), 1, Holder.UNWATCHED, Decision.CLAIM),
        (EXPIRED.model_copy(update={"not_before": NOW + 60}), 1, Holder.UNWATCHED, Decision.EXPIRE),
        (EXPIRED.request_cancel(by="ada", now=3.0), 1, Holder.UNWATCHED, Decision.CANCEL),
        # A living holder ends its run by itself.
        (THEIRS.model_copy(update={"deadline_at": NOW - 1}), 2, Holder.ALIVE, HeldElsewhere(5.0)),
        (THEIRS.model_copy(update={"deadline_at": NOW - 1}), 2, Holder.SILENT, Decision.EXPIRE),
    ],
)
def test_what_happens_to_a_job_depends_on_the_snapshot(
    snapshot: RunSnapshot | None, num_delivered: int, holder: Holder, expected: Decision | NoClaim
) -> None:
    assert decide(snapshot, instance_id="me", num_delivered=num_delivered, holder=holder, now=NOW) == expected
