"""Processes and servers that vanish in mid-run: the run goes on, and nobody who lost it can change it."""

from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from fleet_contracts.snapshot import RunSnapshot
from fleet_contracts.status import RunStatus
from fleet_kit.nats.link import WrongRevision
from fleet_kit.nats.stores.documents import Stored
from fleet_testkit.nats_server import NatsServer
from fleet_testkit.process_pause import pause_process
from fleet_testkit.waiting import eventually
from fleet_worker.job.lease import ClaimLost, Lease
from fleet_worker.job.snapshots import Snapshots

from .conftest import Desk, WorkerProcess

StartWorker = Callable[..., WorkerProcess]


async def test_a_run_that_is_complete_but_not_acked_is_not_executed_again(
    desk: Desk, start_worker: StartWorker
) -> None:
    job = desk.job("tiny")
    ended = RunSnapshot.pending(job, now=1.0).finish(RunStatus.COMPLETED, now=2.0)
    revision = await desk.runs.create(job.run_id, ended.encode())
    await desk.queue(job)
    start_worker("w1")
    await desk.wait_queue_empty()
    entry = await desk.runs.get(job.run_id)
    assert entry is not None
    assert entry.revision == revision


async def test_a_killed_workers_run_is_taken_over_and_its_late_writes_change_nothing(
    desk: Desk, start_worker: StartWorker, tmp_path: Path
) -> None:
    first = start_worker("w1")
    run_id = await desk.submit("waiting", file=str(tmp_path / "go"))
    held = await desk.wait_running(run_id)
    entry = await desk.runs.get(run_id)
    assert entry is not None
    [runner] = first.runners()
    first.kill()
    await eventually(lambda: not runner.is_running(), what="the runner ending with its agent")
    start_worker("w2")
    taken = await desk.wait_for(run_id, lambda run: run.attempt == 2, what="another attempt")
    assert (taken.worker_id, taken.interruptions) == ("w2", 1)
    with pytest.raises(WrongRevision):
        await desk.runs.update(run_id, held.encode(), revision=entry.revision)
    # The dead one's lease, come back to life: it sees that the run is no longer its own.
    snapshots = Snapshots(desk.link, desk.settings.runs_kv_bucket, max_bytes=100_000)
    stale = Lease(snapshots, Stored(held, entry.revision))
    with pytest.raises(ClaimLost, match="attempt 2 of w2"):
        await stale.write(lambda run: run.finish(RunStatus.FAILED, now=9.0))
    (tmp_path / "go").touch()
    run = await desk.wait_ended(run_id)
    assert (run.status, run.attempt, run.worker_id) == (RunStatus.COMPLETED, 2, "w2")
    await desk.wait_queue_empty()


async def test_a_worker_that_lost_its_claim_ends_the_runner_and_leaves_the_run_to_its_holder(
    desk: Desk, start_worker: StartWorker
) -> None:
    # Long enough that it does not take the run back while a slow machine starts its next runner.
    worker = start_worker("w1", PYOCO_RUN_LOST_AFTER_SEC="60")
    run_id = await desk.submit("waiting")
    await desk.wait_running(run_id)
    [runner] = worker.runners()
    await desk.change(
        run_id,
        lambda run: run.hand_back(now=5.0, interrupted=True).claim(
            worker_id="w9", worker_instance_id="other", ack_subject=None, now=5.0
        ),
    )
    await eventually(lambda: not runner.is_running() or runner.status() == psutil.STATUS_ZOMBIE)
    await eventually(lambda: worker.runners() not in ([], [runner]), what="a fresh runner")
    run = await desk.snapshot(run_id)
    assert (run.status, run.worker_id, run.attempt) == (RunStatus.RUNNING, "w9", 2)
    assert "the claim was lost" in worker.log


async def test_an_attempt_that_a_lost_store_had_known_is_recorded_also_after_the_run_has_ended(
    desk: Desk, start_worker: StartWorker
) -> None:
    start_worker("w1", PYOCO_RUN_LOST_AFTER_SEC="60")
    run_id = await desk.submit("waiting")
    held = await desk.wait_running(run_id)
    await desk.runs.delete(run_id)
    anew = RunSnapshot.pending(desk.job("waiting", run_id=run_id), now=5.0).skip_attempts(20)
    again = anew.claim(worker_id="w9", worker_instance_id="other", ack_subject=None, now=5.0)
    await desk.runs.create(run_id, again.finish(RunStatus.COMPLETED, now=6.0).encode())
    ended = await desk.wait_for(run_id, lambda run: run.earlier_attempts, what="the attempt in the history")
    assert (ended.status, ended.worker_id, ended.attempt) == (RunStatus.COMPLETED, "w9", 21)
    assert [(record.worker_id, record.attempt) for record in ended.earlier_attempts] == [("w1", held.attempt)]


async def test_a_killed_runners_run_completes_as_the_next_attempt(
    desk: Desk, start_worker: StartWorker, tmp_path: Path
) -> None:
    worker = start_worker("w1")
    run_id = await desk.submit("waiting", file=str(tmp_path / "go"))
    await desk.wait_running(run_id)
    [runner] = worker.runners()
    runner.kill()
    again = await desk.wait_for(run_id, lambda run: run.attempt == 2, what="another attempt")
    assert again.interruptions == 1
    (tmp_path / "go").touch()
    run = await desk.wait_ended(run_id)
    assert (run.status, run.attempt) == (RunStatus.COMPLETED, 2)
    assert run.task_records["wait_for_file"]["output"] != runner.pid
    assert worker.run_folders() in ([], [f".spare-{worker.runners()[0].pid}"])


async def test_a_run_that_keeps_killing_its_runner_fails(desk: Desk, start_worker: StartWorker) -> None:
    start_worker("w1")
    run = await desk.wait_ended(await desk.submit("crashing"))
    assert (run.status, run.attempt, run.reason) == (RunStatus.FAILED, 3, "execution_error")
    assert run.error == "runner process died (exit code 7) 3 times"
    await desk.wait_queue_empty()
    [letter] = await desk.dead_letters()
    assert letter.error == run.error


@pytest.mark.own_nats
async def test_a_run_outlives_a_restart_of_nats(
    desk: Desk, start_worker: StartWorker, nats_server: NatsServer, tmp_path: Path
) -> None:
    worker = start_worker("w1")
    run_id = await desk.submit("waiting", file=str(tmp_path / "go"))
    await desk.wait_running(run_id)
    nats_server.kill()
    await eventually(lambda: desk.link.down_because is not None)
    await eventually(lambda: "disconnected from NATS" in worker.log)
    # It ends while NATS is away: its end is recorded as soon as NATS is back.
    (tmp_path / "go").touch()
    await eventually(lambda: "ERR-PYOCO-0008" in worker.log)
    nats_server.start()
    await eventually(lambda: desk.link.down_because is None)
    run = await desk.wait_ended(run_id)
    assert worker.log.count("ERR-PYOCO-0008") == 1
    assert (run.status, run.attempt) == (RunStatus.COMPLETED, 1)
    # What happened meanwhile was sent before the end was.
    assert (await desk.events(run_id))[-1].events[-1].status == RunStatus.COMPLETED
    await desk.wait_queue_empty()
    assert (await desk.wait_ended(await desk.submit("tiny"))).status is RunStatus.COMPLETED


@pytest.mark.own_nats
async def test_a_worker_waits_for_a_nats_that_is_not_there_yet(
    desk: Desk, start_worker: StartWorker, nats_server: NatsServer
) -> None:
    run_id = await desk.submit("tiny")
    nats_server.stop()
    await eventually(lambda: desk.link.down_because is not None)
    worker = start_worker("w1")
    await eventually(lambda: "ERR-PYOCO-0003" in worker.log)
    assert worker.process.poll() is None
    nats_server.start()
    await eventually(lambda: desk.link.down_because is None)
    assert (await desk.wait_ended(run_id)).status is RunStatus.COMPLETED


async def test_a_job_that_is_queued_twice_is_executed_once(
    desk: Desk, start_worker: StartWorker, tmp_path: Path
) -> None:
    start_worker("w1", "--slots", "2")
    job = desk.job("waiting", file=str(tmp_path / "go"))
    await desk.runs.create(job.run_id, RunSnapshot.pending(job, now=1.0).encode())
    await desk.queue(job)
    await desk.wait_running(job.run_id)
    await desk.queue(job)

    async def both_delivered() -> bool:
        info = await desk.link.jetstream.consumer_info("PYOCO_WORK", desk.settings.work_durable("default"))
        return bool(info.num_ack_pending == 2)

    await eventually(both_delivered)
    (tmp_path / "go").touch()
    assert (await desk.wait_ended(job.run_id)).attempt == 1
    await desk.wait_queue_empty()


async def test_runners_end_with_their_agent_even_while_a_task_holds_the_interpreter(
    desk: Desk, start_worker: StartWorker
) -> None:
    worker = start_worker("w1")
    run_id = await desk.submit("greedy", seconds=60.0)
    await desk.wait_for(run_id, lambda run: run.status is RunStatus.RUNNING, what="a claim")
    [runner] = worker.runners()
    # The agent can no longer say anything, and its end is the only sign.
    pause_process(worker.process.pid)
    worker.kill()
    await eventually(lambda: not runner.is_running(), what="the runner ending with its agent")
