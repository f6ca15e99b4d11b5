"""Ensuring makes what is missing and respects what exists."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from nats.js import JetStreamContext, api

from fleet_contracts.names import NATS_ROLLUP, ConsumerDefaults, WireNames, kv_subject
from fleet_kit.errors import NatsUnavailable
from fleet_kit.nats.link import NatsLink
from fleet_kit.nats.resources import ensure_bucket, ensure_consumer, ensure_object_store, ensure_stream
from fleet_kit.nats.stream_limits import DlqLimits, EventsLimits
from fleet_kit.nats.streams import dlq_stream_config, events_stream_config, work_consumer_config, work_stream_config
from fleet_testkit.buckets import Bucket
from fleet_testkit.nats_links import ready_link
from fleet_testkit.nats_server import NatsServer

NAMES = WireNames()


@pytest.fixture
async def link(nats_server: NatsServer) -> AsyncIterator[NatsLink]:
    async with ready_link(nats_server.url) as link:
        yield link


@pytest.fixture
def js(link: NatsLink) -> JetStreamContext:
    return link.jetstream


async def test_the_streams_of_the_wire_are_made_as_the_spec_says(js: JetStreamContext) -> None:
    await ensure_stream(js, work_stream_config(NAMES))
    await ensure_stream(js, dlq_stream_config(NAMES, DlqLimits()))
    await ensure_stream(js, events_stream_config(NAMES, EventsLimits()))
    work = (await js.stream_info("PYOCO_WORK")).config
    assert (work.subjects, work.retention) == (["pyoco.work.>"], api.RetentionPolicy.WORK_QUEUE)
    dlq = (await js.stream_info("PYOCO_DLQ")).config
    assert (dlq.subjects, dlq.retention) == (["pyoco.dlq.>"], api.RetentionPolicy.LIMITS)
    assert (dlq.max_age, dlq.max_msgs, dlq.max_bytes) == (604800, 100000, 536870912)


async def test_a_tags_consumer_is_made_as_the_spec_says(js: JetStreamContext) -> None:
    await ensure_stream(js, work_stream_config(NAMES))
    info = await ensure_consumer(js, "PYOCO_WORK", work_consumer_config(NAMES, ConsumerDefaults(), "gpu"))
    config = info.config
    assert (config.durable_name, config.filter_subject) == ("pyoco_workers_gpu", "pyoco.work.gpu")
    assert (config.ack_wait, config.max_deliver, config.max_ack_pending) == (30, 20, 200)


async def test_a_stream_made_with_other_limits_keeps_them(js: JetStreamContext) -> None:
    await js.add_stream(name="PYOCO_DLQ", subjects=["pyoco.dlq.>"], max_msgs=7)
    info = await ensure_stream(js, dlq_stream_config(NAMES, DlqLimits()))
    assert info.config.max_msgs == 7
    assert (await js.stream_info("PYOCO_DLQ")).config.max_msgs == 7


async def test_a_consumer_made_with_other_limits_keeps_them(js: JetStreamContext) -> None:
    await ensure_stream(js, work_stream_config(NAMES))
    theirs = api.ConsumerConfig(
        durable_name=NAMES.work_durable("gpu"),
        filter_subject=NAMES.work_subject("gpu"),
        ack_policy=api.AckPolicy.EXPLICIT,
        ack_wait=5,
        max_deliver=3,
    )
    await js.add_consumer("PYOCO_WORK", theirs)
    info = await ensure_consumer(js, "PYOCO_WORK", work_consumer_config(NAMES, ConsumerDefaults(), "gpu"))
    assert (info.config.ack_wait, info.config.max_deliver) == (5, 3)


async def test_a_bucket_made_by_a_peer_keeps_its_history_and_its_content(link: NatsLink) -> None:
    theirs = await link.jetstream.create_key_value(bucket="pyoco_runs", history=5, ttl=3600)
    await theirs.put("r1", b"1")
    await ensure_bucket(link.jetstream, "pyoco_runs")
    config = (await link.jetstream.stream_info("KV_pyoco_runs")).config
    assert (config.max_msgs_per_subject, config.max_age) == (5, 3600)
    entry = await Bucket(link, "pyoco_runs").get("r1")
    assert entry is not None
    assert entry.value == b"1"


async def test_no_header_wipes_a_bucket_neither_one_of_ours_nor_one_that_a_peer_made(link: NatsLink) -> None:
    await link.jetstream.create_key_value(bucket="theirs", direct=True)
    for name in ("theirs", "ours"):
        await ensure_bucket(link.jetstream, name)
        bucket = Bucket(link, name)
        await bucket.put("victim", b"1")
        for reach in ("all", "sub"):
            with pytest.raises(NatsUnavailable, match="rollup not permitted"):
                await link.publish(kv_subject(name, "mine"), b"", {NATS_ROLLUP: reach})
        assert await bucket.get("victim") is not None
        await bucket.delete("victim")
        assert await bucket.get("victim") is None


async def test_a_bucket_of_ours_is_one_that_the_client_library_understands(link: NatsLink) -> None:
    await ensure_bucket(link.jetstream, "pyoco_runs", ttl_sec=60.0)
    kv = await link.jetstream.key_value("pyoco_runs")
    await kv.put("r1", b"1")
    await kv.put("r1", b"2")
    status = await kv.status()
    assert (status.values, status.history, status.ttl) == (1, 1, 60.0)
    await kv.delete("r1")
    assert await Bucket(link, "pyoco_runs").get("r1") is None


async def test_a_short_lived_bucket_may_be_made(js: JetStreamContext) -> None:
    await ensure_bucket(js, "brief", ttl_sec=15.0)
    assert (await js.stream_info("KV_brief")).config.max_age == 15.0


async def test_an_object_store_is_made_once_and_kept(js: JetStreamContext) -> None:
    await ensure_object_store(js, "pyoco_wheels")
    store = await js.object_store("pyoco_wheels")
    await store.put("a.whl", b"bytes")
    await ensure_object_store(js, "pyoco_wheels")
    assert (await store.get("a.whl")).data == b"bytes"


async def test_replicas_that_start_at_once_do_not_disturb_each_other(js: JetStreamContext) -> None:
    async def ensure_all() -> None:
        await ensure_stream(js, work_stream_config(NAMES))
        await ensure_consumer(js, "PYOCO_WORK", work_consumer_config(NAMES, ConsumerDefaults(), "default"))
        await ensure_bucket(js, "pyoco_workers")
        await ensure_object_store(js, "pyoco_wheels")

    await asyncio.gather(*(ensure_all() for _ in range(10)))


async def test_of_replicas_with_different_settings_the_first_decides(js: JetStreamContext) -> None:
    limits = [DlqLimits(dlq_max_msgs=count) for count in (1, 2, 3, 4, 5)]
    infos = await asyncio.gather(*(ensure_stream(js, dlq_stream_config(NAMES, limit)) for limit in limits))
    assert len({info.config.max_msgs for info in infos}) == 1
