"""Three NATS servers: what is on all of them, who answers, and where a link goes when its server is no use."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

import pytest

from fleet_contracts.names import ConsumerDefaults, WireNames
from fleet_kit.errors import NatsUnavailable
from fleet_kit.nats.link import NatsLink
from fleet_kit.nats.messages import last_message
from fleet_kit.nats.resources import TooFewServers, ensure_bucket, ensure_consumer, ensure_object_store, ensure_stream
from fleet_kit.nats.stores.kv import Mirror
from fleet_kit.nats.streams import work_consumer_config, work_stream_config
from fleet_testkit.buckets import Bucket
from fleet_testkit.nats_cluster import NatsCluster, linked
from fleet_testkit.nats_server import NatsServer
from fleet_testkit.waiting import eventually

pytestmark = [pytest.mark.timeout(120), pytest.mark.long]

NAMES = WireNames()

T = TypeVar("T")


@pytest.fixture
async def link(cluster: NatsCluster) -> AsyncIterator[NatsLink]:
    """On the first server, which stays with the majority."""
    async with linked(cluster.servers[0].url) as link:
        yield link


@pytest.fixture
async def far_link(cluster: NatsCluster) -> AsyncIterator[NatsLink]:
    """On the server that will be cut off, and it knows no other."""
    async with linked(cluster.servers[2].url) as link:
        yield link


async def with_retries(ask: Callable[[], Awaitable[T | None]]) -> T:
    """What it gives once there is a leader (again), and all servers know each other."""

    async def try_it() -> T | None:
        try:
            return await ask()
        except NatsUnavailable:
            return None

    given = await eventually(try_it, within=30, what="an answer")
    assert given is not None
    return given


async def is_refused(asking: Awaitable[object]) -> bool:
    try:
        await asking
    except NatsUnavailable:
        return True
    return False


async def test_streams_buckets_stores_and_queues_are_on_as_many_servers_as_the_setting_says(link: NatsLink) -> None:
    js = link.jetstream
    infos = [
        await with_retries(lambda: ensure_stream(js, work_stream_config(NAMES), replicas=3)),
        await with_retries(lambda: ensure_bucket(js, "things", replicas=3)),
        await with_retries(lambda: ensure_object_store(js, "wheels", replicas=3)),
    ]
    assert [info.config.num_replicas for info in infos] == [3, 3, 3]
    queue = await ensure_consumer(js, "PYOCO_WORK", work_consumer_config(NAMES, ConsumerDefaults(), "default"))
    assert queue.cluster
    assert len(queue.cluster.replicas or ()) == 2


async def test_what_was_made_for_one_server_gets_its_replicas_and_keeps_its_contents(link: NatsLink) -> None:
    js = link.jetstream
    await ensure_bucket(js, "things")
    revision = await Bucket(link, "things").put("key", b"value")
    info = await with_retries(lambda: ensure_bucket(js, "things", replicas=3))
    assert info.config.num_replicas == 3
    entry = await with_retries(lambda: Bucket(link, "things").get("key", linearizable=True))
    assert (entry.value, entry.revision) == (b"value", revision)
    # Never fewer: somebody wanted them.
    assert (await ensure_bucket(js, "things", replicas=1)).config.num_replicas == 3


async def test_more_replicas_than_servers_are_refused_in_a_sentence(link: NatsLink) -> None:
    with pytest.raises(TooFewServers, match=r"the 5 replicas of PYOCO_NATS_REPLICAS.*set it lower"):
        await ensure_bucket(link.jetstream, "things", replicas=5)


async def test_a_single_server_refuses_replicas_in_a_sentence(nats_server: NatsServer) -> None:
    async with linked(nats_server.url) as link:
        with pytest.raises(TooFewServers, match="the 3 replicas of PYOCO_NATS_REPLICAS"):
            await ensure_bucket(link.jetstream, "things", replicas=3)


async def test_a_server_that_is_behind_answers_stale_reads_but_no_linearizable_ones(
    cluster: NatsCluster, link: NatsLink, far_link: NatsLink
) -> None:
    await with_retries(lambda: ensure_bucket(link.jetstream, "things", replicas=3))
    near, far = Bucket(link, "things"), Bucket(far_link, "things")
    old = await near.put("key", b"old")
    await asyncio.to_thread(cluster.wait_serving, "KV_things")
    await with_retries(lambda: far.get("key"))
    await asyncio.to_thread(cluster.cut_off)
    new = await with_retries(lambda: near.put("key", b"new"))
    behind = await far.get("key")
    assert behind
    assert behind.revision == old
    # Rather no answer than a wrong one, as soon as it knows that it does not lead any more.
    await eventually(lambda: is_refused(far.get("key", linearizable=True)), within=30, what="no answer")
    assert await is_refused(last_message(far_link, "KV_things", "$KV.things.another", linearizable=True))
    await asyncio.to_thread(cluster.mend)
    current = await with_retries(lambda: far.get("key", linearizable=True))
    assert current.revision == new


async def test_a_link_leaves_a_server_that_has_lost_its_cluster(cluster: NatsCluster, link: NatsLink) -> None:
    await with_retries(lambda: ensure_bucket(link.jetstream, "things", replicas=3))
    async with linked(cluster.servers[2].url) as lost:
        # It began there by chance, and knows the others.
        lost.client._setup_server_pool(cluster.url.split(","))
        await asyncio.to_thread(cluster.cut_off)
        await with_retries(lambda: Bucket(lost, "things").put("key", b"there"))
        assert lost.reconnects >= 1


async def test_a_mirror_goes_on_when_the_server_that_fed_it_dies(cluster: NatsCluster, link: NatsLink) -> None:
    await with_retries(lambda: ensure_bucket(link.jetstream, "things", replicas=3))
    bucket, mirror = Bucket(link, "things"), Mirror(link, "things", on_change=lambda key, value: None)
    await with_retries(lambda: bucket.put("key", b"1"))
    # Where its consumer is, is up to NATS; on our own server it would take our connection with it.
    fed_by = 0
    while fed_by == 0:
        await mirror.restart()
        consumer = max(await link.jetstream.consumers_info("KV_things"), key=lambda info: str(info.created))
        assert consumer.cluster
        fed_by = int((consumer.cluster.leader or "n0")[1:])
    cluster.servers[fed_by].kill()
    revision = await with_retries(lambda: bucket.put("key", b"2"))
    await eventually(lambda: mirror.revision >= revision, within=30, what="the mirror seeing it")
    await mirror.stop()
