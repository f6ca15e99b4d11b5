"""A worker's id belongs to one living instance; the second is refused, one that was replaced stops."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from fleet_contracts.control import Control, ControlKind
from fleet_contracts.status import RunStatus, WorkerState
from fleet_contracts.worker_record import WorkerRecord
from fleet_kit.nats.link import NatsLink
from fleet_testkit.nats_server import NatsServer
from fleet_testkit.process_pause import pause_process, resume_process
from fleet_testkit.waiting import eventually
from fleet_worker.presence.control import ControlLine
from fleet_worker.presence.record import NotOurs, Registry
from fleet_worker.settings import WorkerSettings

from .conftest import Desk, WorkerProcess

StartWorker = Callable[..., WorkerProcess]


async def registered(desk: Desk, worker_id: str, *, other_than: str | None = None) -> WorkerRecord:
    async def look() -> WorkerRecord | None:
        record = await desk.worker_record(worker_id)
        known = record is not None and record.instance_id != other_than
        return record if known and record is not None and record.state is not WorkerState.STOPPED_GRACEFUL else None

    record = await eventually(look, within=30, what="the worker's record")
    assert record is not None
    return record


async def test_a_second_worker_of_the_same_id_is_refused_with_a_sentence_and_harms_nothing(
    desk: Desk, start_worker: StartWorker
) -> None:
    first = start_worker("w1")
    before = await registered(desk, "w1")
    second = start_worker("w1")
    assert await asyncio.to_thread(second.process.wait, 60) == 1
    assert second.log_lines[-1]["message"] == (
        f"the worker id w1 belongs to another living worker, process {first.process.pid} on "
        f"{before.machine.host}; stop that one, or start this one with another --worker-id"
    )
    assert (await desk.wait_ended(await desk.submit("tiny"))).status is RunStatus.COMPLETED
    after = await registered(desk, "w1")
    assert (after.instance_id, after.machine.pid) == (before.instance_id, first.process.pid)


async def test_a_worker_answers_to_its_id_with_its_instance(desk: Desk, start_worker: StartWorker) -> None:
    start_worker("w1")
    record = await registered(desk, "w1")
    answer = await desk.link.request(desk.settings.control_subject("w1"), Control(kind=ControlKind.PING).encode())
    assert answer.data.decode() == record.instance_id


async def test_of_two_that_start_at_once_exactly_one_stays(desk: Desk, start_worker: StartWorker) -> None:
    for round_ in range(3):
        worker_id = f"twin{round_}"
        twins = [start_worker(worker_id), start_worker(worker_id)]

        async def one_has_left(twins: list[WorkerProcess] = twins) -> bool:
            return sum(twin.process.poll() is not None for twin in twins) == 1

        await eventually(one_has_left, within=30, what="one of the twins leaving")
        [left] = [twin for twin in twins if twin.process.poll() is not None]
        [stays] = [twin for twin in twins if twin is not left]
        assert left.process.returncode == 1
        assert "belongs to another living worker" in left.log.splitlines()[-1]
        record = await registered(desk, worker_id)
        assert record.machine.pid == stays.process.pid
        assert (await desk.wait_ended(await desk.submit("tiny"))).status is RunStatus.COMPLETED
        assert stays.stop() == 0


class TogetherLine(ControlLine):
    """Goes on only when all have asked who is there."""

    together: asyncio.Barrier

    async def find_other_instance(self) -> str | None:
        found = await super().find_other_instance()
        await self.together.wait()
        return found


class Rival:
    """The name and the record of a worker, without the rest of it."""

    def __init__(self, link: NatsLink, instance_id: str, together: asyncio.Barrier) -> None:
        settings = WorkerSettings(worker_id="w1")
        self.registry = Registry(link, settings, instance_id=instance_id)
        self.line = TogetherLine(
            link,
            settings.control_subject("w1"),
            instance_id=instance_id,
            on_cancel=lambda _: None,
            on_record=lambda: None,
            on_job=lambda _: False,
        )
        self.line.together = together


async def test_of_two_that_found_the_name_free_the_record_decides(desk: Desk, nats_server: NatsServer) -> None:
    """The last resort, when both have asked before either could answer."""
    settings = WorkerSettings(nats_url=nats_server.url)
    async with NatsLink(settings, name="one") as link, NatsLink(settings, name="two") as other_link:
        await link.wait_ready()
        await other_link.wait_ready()
        predecessor = WorkerRecord(
            worker_id="w1",
            instance_id="before",
            state=WorkerState.RUNNING,
            last_seen_at=1.0,
            last_heartbeat_at=1.0,
            draining=True,
        )
        await desk.workers.put("w1", predecessor.encode())
        together = asyncio.Barrier(2)
        one, two = Rival(link, "one", together), Rival(other_link, "two", together)
        await asyncio.gather(one.registry.introduce(one.line), two.registry.introduce(two.line))
        # What operators and the one before still write does not decide anything.
        await desk.workers.put("w1", predecessor.model_copy(update={"hidden": True}).encode())
        outcomes = await asyncio.gather(one.registry.claim(), two.registry.claim(), return_exceptions=True)
        assert [isinstance(outcome, NotOurs) for outcome in outcomes].count(True) == 1, outcomes
        winner = "two" if isinstance(outcomes[0], NotOurs) else "one"
        record = await desk.worker_record("w1")
        assert record is not None
        assert (record.instance_id, record.hidden, record.draining) == (winner, True, True)
        # It stays so, whatever the other one tries.
        for rival in (one, two):
            await rival.registry.record_stop()
        left = await desk.worker_record("w1")
        assert left is not None
        assert (left.instance_id, left.state) == (winner, WorkerState.STOPPED_GRACEFUL)


async def test_a_killed_worker_can_be_started_again_at_once(desk: Desk, start_worker: StartWorker) -> None:
    first = start_worker("w1")
    before = await registered(desk, "w1")
    first.kill()
    second = start_worker("w1")
    after = await registered(desk, "w1", other_than=before.instance_id)
    assert after.machine.pid == second.process.pid
    assert (await desk.wait_ended(await desk.submit("tiny"))).status is RunStatus.COMPLETED


async def test_a_worker_that_was_silent_and_replaced_hands_back_says_why_and_leaves(
    desk: Desk, start_worker: StartWorker, tmp_path: Path
) -> None:
    old = start_worker("w1", PYOCO_NATS_REQUEST_TIMEOUT_SEC="1")
    before = await registered(desk, "w1")
    run_id = await desk.submit("waiting", file=str(tmp_path / "go"))
    await desk.wait_running(run_id)
    pause_process(old.process.pid)
    new = start_worker("w1", PYOCO_NATS_REQUEST_TIMEOUT_SEC="1")
    after = await registered(desk, "w1", other_than=before.instance_id)
    assert "does not answer; it is replaced" in new.log
    resume_process(old.process.pid)
    assert await asyncio.to_thread(old.process.wait, 60) == 1
    assert f"belongs to another living worker, process {new.process.pid} on" in old.log.splitlines()[-1]
    # The one that leaves writes nothing over the record of the one that stays.
    assert (await registered(desk, "w1")).instance_id == after.instance_id
    (tmp_path / "go").touch()
    run = await desk.wait_ended(run_id)
    assert (run.status, run.attempt) == (RunStatus.COMPLETED, 2)


async def test_a_worker_that_was_replaced_while_it_was_cut_off_leaves_when_it_is_back(
    desk: Desk, start_worker: StartWorker
) -> None:
    old = start_worker("w1", PYOCO_WORKER_HEARTBEAT_INTERVAL_SEC="60")
    record = await registered(desk, "w1")
    # While it was away another one has begun; here it is the test that writes its record.
    successor = record.model_copy(update={"instance_id": "another", "last_run_id": "of-the-other"})
    await desk.workers.put("w1", successor.encode())
    await desk.link.send(desk.settings.control_subject("w1"), Control(kind=ControlKind.RECORD).encode())
    assert await asyncio.to_thread(old.process.wait, 60) == 1
    left = await desk.worker_record("w1")
    assert left is not None
    assert (left.instance_id, left.state, left.last_run_id) == ("another", WorkerState.IDLE, "of-the-other")


async def test_a_stopping_worker_leaves_the_record_of_its_successor_alone(
    desk: Desk, start_worker: StartWorker
) -> None:
    old = start_worker("w1", PYOCO_WORKER_HEARTBEAT_INTERVAL_SEC="60")
    record = await registered(desk, "w1")
    await desk.workers.put("w1", record.model_copy(update={"instance_id": "another"}).encode())
    old.stop()
    left = await desk.worker_record("w1")
    assert left is not None
    assert (left.instance_id, left.state) == ("another", WorkerState.IDLE)


@pytest.mark.own_nats
async def test_a_wiped_registry_and_a_removed_record_are_filled_again_with_what_operators_had_set(
    desk: Desk, start_worker: StartWorker, nats_server: NatsServer
) -> None:
    start_worker("w1")
    record = await registered(desk, "w1")
    await desk.workers.put("w1", record.model_copy(update={"hidden": True, "draining": True}).encode())
    await eventually(lambda: desk.worker_record("w1"), what="heartbeats going on")

    async def seen_again() -> bool:
        now = await desk.worker_record("w1")
        return now is not None and now.last_seen_at > record.last_seen_at and now.hidden

    await eventually(seen_again, what="the operator's word taken up")
    await desk.workers.delete("w1")
    again = await registered(desk, "w1")
    assert (again.hidden, again.draining, again.instance_id) == (True, True, record.instance_id)
    nats_server.kill()
    nats_server.wipe()
    nats_server.start()
    await eventually(lambda: desk.link.reconnects > 0 and desk.link.down_because is None, within=20, what="NATS back")
    again = await registered(desk, "w1")
    assert (again.hidden, again.draining, again.instance_id) == (True, True, record.instance_id)
