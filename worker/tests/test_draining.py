"""A worker that an operator drains: it finishes what it has begun, leaves the rest to others, and comes back."""

from collections.abc import Callable
from pathlib import Path

import pytest

from fleet_contracts.control import Control, ControlKind
from fleet_contracts.status import RunStatus, WorkerState
from fleet_contracts.worker_record import WorkerRecord
from fleet_kit.nats.link import WrongRevision
from fleet_testkit.waiting import eventually

from .conftest import Desk, WorkerProcess

StartWorker = Callable[..., WorkerProcess]
DRAINING = "draining: what has begun goes on"


async def set_draining(desk: Desk, worker_id: str, wanted: bool, *, hint: bool = True) -> None:
    """What workers-api does."""
    while True:
        entry = await desk.workers.get(worker_id)
        assert entry is not None
        record = WorkerRecord.decode(entry.value).model_copy(update={"draining": wanted})
        try:
            await desk.workers.update(worker_id, record.encode(), revision=entry.revision)
            break
        except WrongRevision:
            continue
    if hint:
        await desk.link.send(desk.settings.control_subject(worker_id), Control(kind=ControlKind.RECORD).encode())


async def registered(desk: Desk, worker_id: str) -> WorkerRecord:
    async def look() -> WorkerRecord | None:
        record = await desk.worker_record(worker_id)
        return record if record is not None and record.state is not WorkerState.STOPPED_GRACEFUL else None

    record = await eventually(look, within=40, what="the worker's record")
    assert record is not None
    return record


async def deliveries(desk: Desk) -> int:
    info = await desk.link.jetstream.consumer_info("PYOCO_WORK", desk.settings.work_durable("default"))
    assert info.delivered is not None
    return info.delivered.consumer_seq


async def nobody_asks_for_jobs(desk: Desk) -> None:
    """No request for jobs is open any more, so none can be answered."""

    async def is_quiet() -> bool:
        info = await desk.link.jetstream.consumer_info("PYOCO_WORK", desk.settings.work_durable("default"))
        return info.num_waiting == 0

    await eventually(is_quiet, within=30, what="nobody asking for jobs")


async def several_heartbeats(desk: Desk, worker_id: str) -> None:
    """The worker has had the time to do what it should not do."""
    before = await registered(desk, worker_id)

    async def later() -> bool:
        return (await registered(desk, worker_id)).last_seen_at > before.last_seen_at + 1.0

    await eventually(later, what="heartbeats")


@pytest.mark.parametrize("hint", [True, False])
async def test_a_drained_worker_finishes_takes_nothing_new_and_takes_again_when_it_is_resumed(
    desk: Desk, start_worker: StartWorker, tmp_path: Path, hint: bool
) -> None:
    worker = start_worker("w1", "--slots", "2", PYOCO_WORKER_HEARTBEAT_INTERVAL_SEC="2" if hint else "0.5")
    begun = await desk.submit("waiting", file=str(tmp_path / "go"))
    await desk.wait_running(begun)
    await set_draining(desk, "w1", True, hint=hint)
    await eventually(lambda: DRAINING in worker.log, what="draining noticed")
    waiting = await desk.submit("tiny")
    (tmp_path / "go").touch()
    assert (await desk.wait_ended(begun)).attempt == 1
    await nobody_asks_for_jobs(desk)
    await several_heartbeats(desk, "w1")
    assert await deliveries(desk) == 1, "only the run that had begun was ever handed out"
    assert (await desk.snapshot(waiting)).status is RunStatus.PENDING
    assert (await registered(desk, "w1")).draining
    await set_draining(desk, "w1", False, hint=hint)
    assert (await desk.wait_ended(waiting)).worker_id == "w1"
    # As often as it is wanted.
    for round_ in (2, 3):
        await set_draining(desk, "w1", True, hint=hint)
        await eventually(lambda round_=round_: worker.log.count(DRAINING) == round_, what="draining noticed again")
        await set_draining(desk, "w1", False, hint=hint)
        assert (await desk.wait_ended(await desk.submit("tiny"))).worker_id == "w1"
    assert worker.stop() == 0


async def test_what_was_claimed_ahead_is_handed_back_and_done_by_others(
    desk: Desk, start_worker: StartWorker, tmp_path: Path
) -> None:
    for _ in range(80):
        await desk.submit("tiny")
    long_run = await desk.submit("waiting", file=str(tmp_path / "go"))
    behind = [await desk.submit("tiny") for _ in range(60)]
    worker = start_worker("w1")
    await desk.wait_running(long_run)
    await set_draining(desk, "w1", True)
    await eventually(lambda: DRAINING in worker.log, what="draining noticed")

    async def none_is_held() -> bool:
        return not any([(await desk.snapshot(run_id)).is_held for run_id in behind])

    await eventually(none_is_held, what="everything behind the long run handed back")
    start_worker("w2")
    runs = [await desk.wait_ended(run_id) for run_id in behind]
    assert {(run.status, run.worker_id, run.interruptions) for run in runs} == {(RunStatus.COMPLETED, "w2", 0)}
    (tmp_path / "go").touch()
    assert (await desk.wait_ended(long_run)).worker_id == "w1"


async def test_a_drained_worker_with_many_slots_does_not_use_up_the_deliveries_of_a_job(
    desk: Desk, start_worker: StartWorker
) -> None:
    """Its open requests could otherwise be answered with the same job again and again."""
    worker = start_worker("w1", "--slots", "6")
    await registered(desk, "w1")
    await eventually(lambda: len(worker.runners()) == 6, within=60, what="all runners")
    assert (await desk.wait_ended(await desk.submit("tiny"), within=60)).status is RunStatus.COMPLETED
    before = await deliveries(desk)
    await set_draining(desk, "w1", True)
    await eventually(lambda: DRAINING in worker.log, what="draining noticed")
    run_id = await desk.submit("tiny")
    await several_heartbeats(desk, "w1")
    assert await deliveries(desk) - before <= 1
    await set_draining(desk, "w1", False)
    assert (await desk.wait_ended(run_id)).status is RunStatus.COMPLETED


async def test_draining_is_kept_over_a_restart_and_a_stop_changes_nothing(
    desk: Desk, start_worker: StartWorker
) -> None:
    first = start_worker("w1")
    await registered(desk, "w1")
    await set_draining(desk, "w1", True)
    await eventually(lambda: DRAINING in first.log, what="draining noticed")
    assert first.stop() == 0
    stopped = await desk.worker_record("w1")
    assert stopped is not None
    assert (stopped.state, stopped.draining) == (WorkerState.STOPPED_GRACEFUL, True)
    run_id = await desk.submit("tiny")
    second = start_worker("w1")
    assert (await registered(desk, "w1")).draining
    await eventually(lambda: DRAINING in second.log, what="draining from the start")
    assert (await desk.snapshot(run_id)).attempt == 0
    await set_draining(desk, "w1", False)
    assert (await desk.wait_ended(run_id)).attempt == 1
