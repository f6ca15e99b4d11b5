"""A worker makes nothing on NATS: it announces itself, waits for what the owners make, and says so."""

from collections.abc import AsyncIterator, Callable

import pytest
from nats.js.errors import NotFoundError

from fleet_contracts.names import ConsumerDefaults
from fleet_contracts.status import RunStatus
from fleet_kit.nats.link import NatsLink
from fleet_kit.nats.resources import ensure_bucket, ensure_stream
from fleet_kit.nats.streams import work_stream_config
from fleet_testkit.nats_resources import make_all, make_queues
from fleet_testkit.nats_server import NatsServer
from fleet_testkit.waiting import eventually
from fleet_worker.settings import WorkerSettings

from .conftest import Desk, WorkerProcess

StartWorker = Callable[..., WorkerProcess]


@pytest.fixture
async def bare(nats_server: NatsServer) -> AsyncIterator[Desk]:
    """A desk on a NATS on which nobody has made anything yet."""
    settings = WorkerSettings(nats_url=nats_server.url)
    async with NatsLink(settings, name="desk") as link:
        await link.wait_ready()
        yield Desk(link, settings)


async def streams(desk: Desk) -> set[str]:
    return {info.config.name or "" for info in await desk.link.jetstream.streams_info()}


async def test_it_announces_itself_and_works_once_the_owners_have_made_what_it_needs(
    bare: Desk, start_worker: StartWorker
) -> None:
    worker = start_worker("w1")
    await eventually(lambda: "waiting for the registry of workers" in worker.log, within=20, what="a word")
    assert await streams(bare) == set()

    js, settings = bare.link.jetstream, bare.settings
    await ensure_bucket(js, settings.workers_kv_bucket)
    record = await eventually(lambda: bare.worker_record("w1"), within=20, what="the announcement")
    assert record.tags == ["default"]
    await eventually(
        lambda: "waiting for the queue of tag default, which runs-api makes" in worker.log, what="a word"
    )
    assert await streams(bare) == {"KV_pyoco_workers"}

    # Who waits is alive.
    async def is_seen_again() -> bool:
        now = await bare.worker_record("w1")
        return now is not None and now.last_seen_at > record.last_seen_at

    await eventually(is_seen_again, what="a heartbeat")

    await ensure_stream(js, work_stream_config(settings))
    with pytest.raises(NotFoundError):
        await js.consumer_info("PYOCO_WORK", "pyoco_workers_default")
    await make_all(js, settings, tags=["default"])
    run_id = await bare.submit("tiny")
    assert (await bare.wait_ended(run_id)).status is RunStatus.COMPLETED
    assert worker.log.count("waiting for") == 2


@pytest.mark.own_nats
async def test_it_goes_on_when_nats_has_lost_its_disk_and_the_owners_are_back(
    bare: Desk, start_worker: StartWorker, nats_server: NatsServer
) -> None:
    await make_all(bare.link.jetstream, bare.settings, tags=["default"])
    start_worker("w1")
    assert (await bare.wait_ended(await bare.submit("tiny"))).status is RunStatus.COMPLETED
    nats_server.stop()
    nats_server.wipe()
    nats_server.start()
    await eventually(lambda: bare.link.reconnects == 1 and bare.link.down_because is None, what="the desk back")
    await make_all(bare.link.jetstream, bare.settings, tags=["default"])
    assert (await bare.wait_ended(await bare.submit("tiny"))).status is RunStatus.COMPLETED
    assert await bare.worker_record("w1") is not None


async def test_it_acknowledges_progress_often_enough_for_a_queue_with_a_short_ack_wait(
    bare: Desk, start_worker: StartWorker
) -> None:
    js, settings = bare.link.jetstream, bare.settings
    await make_all(js, settings, tags=[])
    await make_queues(js, settings, tags=["default"], consumers=ConsumerDefaults(consumer_ack_wait_sec=1.0))
    start_worker("w1", PYOCO_ACK_PROGRESS_INTERVAL_SEC="60")
    run = await bare.wait_ended(await bare.submit("greedy", seconds=3.0))
    assert (run.status, run.attempt) == (RunStatus.COMPLETED, 1)
    info = await js.consumer_info("PYOCO_WORK", "pyoco_workers_default")
    assert info.delivered.consumer_seq == 1
