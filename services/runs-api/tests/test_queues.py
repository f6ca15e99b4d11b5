"""Queues are made for the tags that workers announce: a worker itself may make nothing."""

import time
from pathlib import Path

import nats.errors
import nats.js.errors
import pytest
from nats.js.api import AckPolicy, ConsumerConfig, ConsumerInfo

from fleet_contracts.status import WorkerState
from fleet_contracts.worker_record import WorkerRecord
from fleet_runs_api.dispatch import queues
from fleet_testkit.buckets import Bucket
from fleet_testkit.nats_server import NatsServer
from fleet_testkit.waiting import eventually

from .conftest import RunsUnderTest, runs_running, runs_settings


async def announce(service: RunsUnderTest, worker_id: str, *tags: str, state: WorkerState = WorkerState.IDLE) -> None:
    now = time.time()
    record = WorkerRecord(
        worker_id=worker_id, instance_id="i1", state=state, last_seen_at=now, last_heartbeat_at=now, tags=list(tags)
    )
    await Bucket(service.link, "pyoco_workers").put(worker_id, record.encode())


async def queue(service: RunsUnderTest, tag: str) -> ConsumerInfo | None:
    try:
        info: ConsumerInfo = await service.link.jetstream.consumer_info("PYOCO_WORK", f"pyoco_workers_{tag}")
    except (nats.errors.Error, nats.js.errors.Error):
        return None
    return info


async def made(service: RunsUnderTest, tag: str) -> ConsumerInfo:
    found = await eventually(lambda: queue(service, tag), within=30, what=f"the queue of {tag}")
    assert found is not None
    return found


async def test_the_queue_of_a_tag_is_made_when_a_worker_announces_it(nats_server: NatsServer, tmp_path: Path) -> None:
    settings = runs_settings(
        nats_server, tmp_path, consumer_ack_wait_sec=7, consumer_max_deliver=3, consumer_max_ack_pending=9
    )
    async with runs_running(settings) as service:
        assert await queue(service, "gpu") is None
        await announce(service, "w1", "gpu", "cpu", "no tag at all")
        config = (await made(service, "gpu")).config
        assert (config.filter_subject, config.ack_policy) == ("pyoco.work.gpu", AckPolicy.EXPLICIT)
        assert (config.ack_wait, config.max_deliver, config.max_ack_pending) == (7, 3, 9)
        await made(service, "cpu")


async def test_a_queue_that_exists_is_used_as_it_is(service: RunsUnderTest) -> None:
    theirs = ConsumerConfig(durable_name="pyoco_workers_peer", filter_subject="pyoco.work.peer", max_deliver=77)
    await service.link.jetstream.add_consumer("PYOCO_WORK", theirs)
    await announce(service, "w1", "peer", "ours")
    await made(service, "ours")
    assert (await made(service, "peer")).config.max_deliver == 77


@pytest.mark.own_nats
async def test_queues_are_made_again_when_nats_has_lost_its_disk(
    service: RunsUnderTest, nats_server: NatsServer
) -> None:
    await announce(service, "w1", "gpu")
    await made(service, "gpu")
    nats_server.stop()
    nats_server.wipe()
    nats_server.start()
    # Nobody has announced the tag again: the service remembers it.
    await made(service, "gpu")


async def test_a_queue_that_somebody_removed_is_made_again(
    nats_server: NatsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queues, "_LOOK_AGAIN_SECONDS", 0.2)
    async with runs_running(runs_settings(nats_server, tmp_path)) as service:
        await announce(service, "w1", "gpu")
        before = await made(service, "gpu")
        await service.link.jetstream.delete_consumer("PYOCO_WORK", "pyoco_workers_gpu")
        assert (await made(service, "gpu")).created != before.created


async def test_a_worker_that_has_left_needs_no_queue(service: RunsUnderTest) -> None:
    await announce(service, "gone", "old", state=WorkerState.STOPPED_GRACEFUL)
    await announce(service, "w1", "new")
    await made(service, "new")
    assert await queue(service, "old") is None


async def test_a_queue_that_cannot_be_made_keeps_nobody_else_waiting(service: RunsUnderTest) -> None:
    js = service.link.jetstream
    await js.add_consumer("PYOCO_WORK", ConsumerConfig(durable_name="stranger", filter_subject="pyoco.work.a_taken"))
    await announce(service, "w1", "a_taken", "z_free")
    await made(service, "z_free")
    assert await queue(service, "a_taken") is None
    await js.delete_consumer("PYOCO_WORK", "stranger")
    await made(service, "a_taken")


async def test_a_worker_can_cause_only_so_many_queues(
    nats_server: NatsServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with runs_running(runs_settings(nats_server, tmp_path, worker_tags_max=3, queues_max=5)) as service:
        await announce(service, "greedy", *(f"a{number}" for number in range(10)))
        # Nor by naming others later.
        await announce(service, "greedy", *(f"b{number}" for number in range(10)))
        await announce(service, "w1", "a0", "c0", "c1")
        # No more in all, for any worker.
        await announce(service, "w2", "d0")
        await eventually(lambda: "worker w2 names 1 more tags" in caplog.text, what="the refusal being logged")
        await made(service, "c1")
        assert service.app.state.service._queues.tags == {"a0", "a1", "a2", "c0", "c1"}
        assert (await service.link.stream_info("PYOCO_WORK")).state.consumer_count == 5
    assert "worker greedy names 7 more tags" in caplog.text
