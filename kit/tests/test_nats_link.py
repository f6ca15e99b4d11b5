"""The link to NATS survives outages and says why it is down."""

import asyncio
import logging
from pathlib import Path

import pytest
from nats.js import api

from fleet_kit.errors import NatsUnavailable
from fleet_kit.nats.link import NatsLink, WrongRevision
from fleet_kit.nats.pull import Puller
from fleet_kit.nats.resources import ensure_bucket, ensure_consumer, ensure_stream
from fleet_kit.nats.stores.kv import Mirror
from fleet_kit.settings import FleetSettings
from fleet_testkit.buckets import Bucket
from fleet_testkit.nats_server import NatsServer
from fleet_testkit.waiting import eventually


def settings(server: NatsServer) -> FleetSettings:
    return FleetSettings(nats_url=server.url, nats_request_timeout_sec=2.0)


async def test_compare_and_set_refuses_a_stale_revision(nats_server: NatsServer) -> None:
    async with NatsLink(settings(nats_server), name="test") as link:
        link.after_connect(lambda: ensure_bucket(link.jetstream, "things"))
        async with asyncio.timeout(30):
            await link.wait_ready()
        bucket = Bucket(link, "things")
        assert await bucket.get("a") is None
        first = await bucket.create("a", b"1")
        second = await bucket.update("a", b"2", revision=first)
        with pytest.raises(WrongRevision):
            await bucket.update("a", b"3", revision=first)
        with pytest.raises(WrongRevision):
            await bucket.create("a", b"4")
        entry = await bucket.get("a")
        assert entry is not None
        assert (entry.value, entry.revision) == (b"2", second)
        await bucket.delete("a")
        assert await bucket.get("a") is None
        assert await bucket.create("a", b"5") > second


async def test_a_changed_key_is_not_removed_and_an_erased_one_leaves_nothing(
    nats_server: NatsServer,
) -> None:
    async with NatsLink(settings(nats_server), name="test") as link:
        link.after_connect(lambda: ensure_bucket(link.jetstream, "things"))
        async with asyncio.timeout(30):
            await link.wait_ready()
        bucket = Bucket(link, "things")
        first = await bucket.create("a", b"1")
        second = await bucket.update("a", b"2", revision=first)
        with pytest.raises(WrongRevision):
            await bucket.delete("a", revision=first)
        assert await bucket.get("a") is not None
        assert await bucket.markers(besides=()) == {}
        await bucket.delete("a", revision=second)
        await bucket.create("b", b"3")
        assert await bucket.get("a") is None
        markers = await bucket.markers(besides={"b"})
        assert markers == {"a": second + 1}
        await bucket.erase("a", up_to=markers["a"])
        await bucket.erase("b", up_to=markers["a"])
        assert await bucket.markers(besides={"b"}) == {}
        assert (await link.stream_info("KV_things")).state.messages == 1
        assert await bucket.get("b") is not None


async def test_a_bucket_without_direct_gets_is_read_all_the_same(nats_server: NatsServer) -> None:
    async with NatsLink(settings(nats_server), name="test") as link:
        async with asyncio.timeout(30):
            await link.wait_ready()
        await link.jetstream.create_key_value(bucket="foreign", direct=False)
        bucket = Bucket(link, "foreign")
        assert await bucket.get("a") is None
        revision = await bucket.create("a", b"1")
        entry = await bucket.get("a")
        assert entry is not None
        assert (entry.value, entry.revision) == (b"1", revision)
        await bucket.delete("a")
        assert await bucket.get("a") is None


@pytest.mark.own_nats
async def test_a_link_outlives_its_server_and_prepares_a_wiped_one_again(nats_server: NatsServer) -> None:
    async with NatsLink(settings(nats_server), name="test") as link:
        link.after_connect(lambda: ensure_bucket(link.jetstream, "things"))
        mirror = Mirror(link, "things", on_change=lambda key, value: None)
        link.after_connect(mirror.restart)
        async with asyncio.timeout(30):
            await link.wait_ready()
        bucket = Bucket(link, "things")
        await bucket.create("a", b"1")
        await eventually(lambda: mirror.values == {"a": b"1"})
        nats_server.kill()
        await eventually(lambda: link.down_because is not None)
        with pytest.raises(NatsUnavailable, match="NATS is unavailable"):
            link.require()
        with pytest.raises(NatsUnavailable):
            await bucket.create("b", b"2")
        nats_server.wipe()
        nats_server.start()
        await eventually(lambda: link.down_because is None)
        assert await bucket.get("b") is None
        await bucket.create("c", b"3")
        await eventually(lambda: mirror.values == {"c": b"3"})
        await mirror.stop()


async def test_the_reason_why_a_link_is_not_ready_is_logged_once_for_a_while(
    nats_server: NatsServer, caplog: pytest.LogCaptureFixture
) -> None:
    tried: list[None] = []

    async def prepare() -> None:
        tried.append(None)
        if len(tried) < 5:
            raise RuntimeError("there is no leader")

    async with NatsLink(settings(nats_server), name="test") as link:
        link.after_connect(prepare)
        async with asyncio.timeout(30):
            await link.wait_ready()
    logged = [record for record in caplog.records if "could not prepare" in record.message]
    assert [record.levelname for record in logged if record.levelno > logging.DEBUG] == ["WARNING"]
    assert len([record for record in logged if record.exc_info]) == 1


async def test_one_wait_serves_several_durables(nats_server: NatsServer) -> None:
    async with NatsLink(settings(nats_server), name="test") as link:
        async with asyncio.timeout(30):
            await link.wait_ready()
        js = link.jetstream
        await ensure_stream(
            js, api.StreamConfig(name="W", subjects=["w.>"], retention=api.RetentionPolicy.WORK_QUEUE)
        )
        for tag in "abc":
            await ensure_consumer(
                js, "W", api.ConsumerConfig(durable_name=f"d_{tag}", filter_subject=f"w.{tag}", ack_wait=30)
            )
        puller = Puller(link, stream="W", durables=["d_a", "d_b", "d_c"], expires_seconds=1.0)
        await puller.start()
        assert await puller.take(1, wait_seconds=0.2) == []
        waiting = asyncio.create_task(puller.take(1, wait_seconds=5))
        await link.publish("w.b", b"first")
        [msg] = await waiting
        assert msg.data == b"first"
        await msg.ack()
        for tag in "cab":
            await link.publish(f"w.{tag}", tag.encode())
        got: list[bytes] = []
        while len(got) < 3:
            for msg in await puller.take(1):
                assert msg.metadata.num_delivered <= 2
                got.append(msg.data)
                await msg.ack()
        assert sorted(got) == [b"a", b"b", b"c"]


async def test_a_cancel_that_comes_together_with_an_answer_is_not_swallowed(nats_server: NatsServer) -> None:
    async with NatsLink(settings(nats_server), name="test") as link:
        async with asyncio.timeout(30):
            await link.wait_ready()

        async def ask_for_ever() -> None:
            while True:
                await link.request("$JS.API.INFO")

        for number in range(300):
            asking = asyncio.create_task(ask_for_ever())
            await asyncio.sleep(number * 1e-5)
            asking.cancel()
            async with asyncio.timeout(30):
                await asyncio.wait([asking])
            assert asking.cancelled()


async def test_an_unreachable_server_is_named_while_connecting(tmp_path: Path) -> None:
    server = NatsServer(tmp_path)
    async with NatsLink(FleetSettings(nats_url=server.url), name="test") as link:
        await eventually(lambda: link.down_because not in (None, "not connected yet"))
        server.start()
        async with asyncio.timeout(30):
            await link.wait_ready()
    server.kill()


async def test_a_task_that_swallows_a_cancel_does_not_keep_the_link_from_closing(nats_server: NatsServer) -> None:
    """As the library does on Python 3.11 when the cancel comes together with a connection."""
    begun = asyncio.Event()

    async def stubborn() -> None:
        begun.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            await asyncio.sleep(60)

    async with asyncio.timeout(30):
        async with NatsLink(FleetSettings(nats_url=nats_server.url), name="test") as link:
            link.after_connect(stubborn)
            await begun.wait()


async def test_the_second_name_of_the_api_is_tried_only_when_the_first_stays_silent(nats_server: NatsServer) -> None:
    """A reload of the users silences the first for a moment, and a worker may not publish to the second."""
    names = ("MINE.API", "$JS.API")
    async with (
        NatsLink(settings(nats_server), name="other") as other,
        NatsLink(settings(nats_server), name="reloaded", api_prefixes=names) as reloaded,
        NatsLink(settings(nats_server), name="plain", api_prefixes=names) as plain,
        asyncio.timeout(30),
    ):
        await asyncio.gather(other.wait_ready(), reloaded.wait_ready(), plain.wait_ready())
        assert b"io.nats.jetstream" in (await plain.request_api("INFO")).data

        asked = asyncio.create_task(reloaded.request_api("INFO"))
        await asyncio.sleep(0)  # it asks while nobody answers
        subscription = await other.client.subscribe("MINE.API.>")
        await (await anext(subscription.messages)).respond(b"mine")
        assert (await asked).data == b"mine"

        again = asyncio.create_task(plain.request_api("INFO"))
        assert b"io.nats.jetstream" in (await again).data
        assert subscription.pending_msgs == 0, "the name that answered is kept"
