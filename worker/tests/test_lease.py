"""The lease on a run: what its holder may write, and how it finds out that the run is no longer its own."""

from dataclasses import dataclass

import pytest

from fleet_contracts.snapshot import RunSnapshot
from fleet_contracts.status import RunStatus
from fleet_kit.errors import NatsUnavailable
from fleet_kit.nats.stores.documents import Stored
from fleet_worker.job.lease import ClaimLost, Lease
from fleet_worker.job.snapshots import Snapshots

from .conftest import Desk

MAX_BYTES = 5_000


class UnreliableSnapshots(Snapshots):
    """The runs bucket over a connection that can be lost right before an acknowledgement."""

    loses_acks = False

    async def write(self, key: str, value: RunSnapshot, *, revision: int) -> int:
        written = await super().write(key, value, revision=revision)
        if self.loses_acks:
            raise NatsUnavailable("the connection was lost")
        return written


@dataclass(frozen=True, slots=True)
class Held:
    run_id: str
    lease: Lease
    snapshots: UnreliableSnapshots


def completed(snapshot: RunSnapshot) -> RunSnapshot:
    return snapshot.finish(RunStatus.COMPLETED, now=9.0, result="r" * 2 * MAX_BYTES)


@pytest.fixture
async def held(desk: Desk) -> Held:
    job = desk.job("tiny")
    snapshots = UnreliableSnapshots(desk.link, desk.settings.runs_kv_bucket, max_bytes=MAX_BYTES)
    claimed = RunSnapshot.pending(job, now=1.0).claim(
        worker_id="w1", worker_instance_id="me", ack_subject="a", now=2.0
    )
    stored = Stored(claimed, await snapshots.write(job.run_id, claimed, revision=0))
    return Held(job.run_id, Lease(snapshots, stored), snapshots)


async def revision_of(desk: Desk, run_id: str) -> int:
    entry = await desk.runs.get(run_id)
    assert entry is not None
    return entry.revision


async def test_a_last_write_that_was_stored_and_not_acknowledged_is_found_and_not_written_again(
    desk: Desk, held: Held
) -> None:
    held.snapshots.loses_acks = True
    with pytest.raises(NatsUnavailable):
        await held.lease.write(completed)
    held.snapshots.loses_acks = False
    revision = await revision_of(desk, held.run_id)
    # It is found although it was compacted.
    last = await held.lease.write(completed)
    assert (last.status, last.result, last.result_truncated) == (RunStatus.COMPLETED, None, True)
    assert await revision_of(desk, held.run_id) == revision


async def test_a_heartbeat_that_was_stored_and_not_acknowledged_loses_no_claim(desk: Desk, held: Held) -> None:
    held.snapshots.loses_acks = True
    for _ in range(2):
        with pytest.raises(NatsUnavailable):
            await held.lease.write_progress()
    held.snapshots.loses_acks = False
    await held.lease.write_progress(task_records={"a": {}})
    run = await desk.snapshot(held.run_id)
    assert (run.status, run.attempt, run.task_records) == (RunStatus.RUNNING, 1, {"a": {}})


@pytest.mark.parametrize("status", [RunStatus.COMPLETED, RunStatus.FAILED])
async def test_a_run_that_another_writer_has_ended_is_lost_even_if_it_was_ended_alike(
    desk: Desk, held: Held, status: RunStatus
) -> None:
    await desk.change(held.run_id, lambda run: run.finish(status, now=8.0))
    revision = await revision_of(desk, held.run_id)
    with pytest.raises(ClaimLost, match=f"attempt 1 of w1, {status}"):
        await held.lease.write(completed)
    with pytest.raises(ClaimLost):
        await held.lease.write_progress()
    assert await revision_of(desk, held.run_id) == revision


async def test_a_run_that_was_handed_back_and_claimed_again_is_lost_to_the_attempt_before(
    desk: Desk, held: Held
) -> None:
    def claim_again(run: RunSnapshot) -> RunSnapshot:
        waiting = run.hand_back(now=5.0, interrupted=True)
        return waiting.claim(worker_id="w1", worker_instance_id="me", ack_subject="b", now=6.0)

    await desk.change(held.run_id, claim_again)
    with pytest.raises(ClaimLost, match="attempt 2 of w1"):
        await held.lease.write_progress()


async def test_a_snapshot_that_is_gone_or_unreadable_is_a_lost_claim(desk: Desk, held: Held) -> None:
    await desk.runs.put(held.run_id, b"no snapshot")
    with pytest.raises(ClaimLost, match="unreadable"):
        await held.lease.write_progress()
    await desk.runs.delete(held.run_id)
    with pytest.raises(ClaimLost, match="gone"):
        await held.lease.write(completed)


async def test_a_cancel_request_is_seen_at_the_next_write_and_kept(desk: Desk, held: Held) -> None:
    seen: list[RunStatus] = []
    held.lease.on_cancel = lambda: seen.append(held.lease.snapshot.status)
    await held.lease.write_progress()
    assert seen == []
    await desk.change(held.run_id, lambda run: run.request_cancel(by="ada", now=5.0))
    await held.lease.write_progress(task_records={"a": {}})
    assert seen == [RunStatus.CANCELLING]
    run = await desk.snapshot(held.run_id)
    assert (run.status, run.cancel_requested_by, run.task_records) == (RunStatus.CANCELLING, "ada", {"a": {}})


async def test_an_attempt_is_added_to_the_history_of_a_run_that_others_have_gone_on_with(
    desk: Desk, held: Held
) -> None:
    await desk.runs.delete(held.run_id)
    anew = RunSnapshot.pending(desk.job("tiny", run_id=held.run_id), now=5.0).skip_attempts(20)
    again = anew.claim(worker_id="w9", worker_instance_id="other", ack_subject=None, now=5.0)
    await desk.runs.create(held.run_id, again.encode())
    for _ in range(2):
        await held.lease.record_attempt()
        run = await desk.snapshot(held.run_id)
        assert (run.attempt, [one.attempt for one in run.earlier_attempts]) == (21, [1])
