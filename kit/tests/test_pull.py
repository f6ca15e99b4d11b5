"""Pulling from several durables at once: nothing is kept from others, nothing waits longer than it must."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from nats.aio.msg import Msg
from nats.js import api

from fleet_kit.errors import NatsUnavailable
from fleet_kit.nats.link import NatsLink
from fleet_kit.nats.pull import Puller
from fleet_kit.nats.resources import ensure_consumer, ensure_stream
from fleet_testkit.nats_links import ready_link
from fleet_testkit.nats_server import NatsServer
from fleet_testkit.waiting import eventually

TAGS = "abc"
STREAM = api.StreamConfig(name="W", subjects=["w.>"], retention=api.RetentionPolicy.WORK_QUEUE)


def consumer(tag: str) -> api.ConsumerConfig:
    return api.ConsumerConfig(durable_name=f"d_{tag}", filter_subject=f"w.{tag}", ack_wait=30)


@asynccontextmanager
async def linked(server: NatsServer) -> AsyncIterator[NatsLink]:
    async def prepare(link: NatsLink) -> None:
        await ensure_stream(link.jetstream, STREAM)
        for tag in TAGS:
            await ensure_consumer(link.jetstream, "W", consumer(tag))

    async with ready_link(server.url, timeout_seconds=2.0, prepare=prepare) as link:
        yield link


@pytest.fixture
async def link(nats_server: NatsServer) -> AsyncIterator[NatsLink]:
    async with linked(nats_server) as link:
        yield link


async def puller_of(link: NatsLink, *tags: str, expires_seconds: float = 1.0) -> Puller:
    puller = Puller(link, stream="W", durables=[f"d_{tag}" for tag in tags], expires_seconds=expires_seconds)
    link.after_connect(puller.start)
    await puller.start()
    return puller


async def take_all(puller: Puller, count: int) -> list[Msg]:
    """Take and ack until `count` messages have come."""
    taken: list[Msg] = []
    async with asyncio.timeout(30):
        while len(taken) < count:
            for msg in await puller.take(1):
                await msg.ack()
                taken.append(msg)
    return taken


def open_requests(link: NatsLink, *tags: str) -> Callable[[], Awaitable[bool]]:
    """Whether every durable has somebody waiting on it."""

    async def look() -> bool:
        infos = [await link.jetstream.consumer_info("W", f"d_{tag}") for tag in tags]
        return all(info.num_waiting for info in infos)

    return look


@pytest.mark.parametrize("tags", ["a", "abc"])
async def test_a_wait_for_nothing_ends_on_time(link: NatsLink, tags: str) -> None:
    puller = await puller_of(link, *tags, expires_seconds=60.0)
    begun = time.monotonic()
    assert await puller.take(1, wait_seconds=0.3) == []
    assert 0.29 <= time.monotonic() - begun < 20


async def test_a_wait_longer_than_one_request_is_asked_for_again(link: NatsLink) -> None:
    puller = await puller_of(link, "a", "b", expires_seconds=0.3)
    waiting = asyncio.create_task(puller.take(1, wait_seconds=10))
    begun = time.monotonic()
    await eventually(lambda: time.monotonic() - begun > 1.0)
    await link.publish("w.b", b"late")
    [msg] = await waiting
    assert msg.data == b"late"


async def test_one_take_brings_as_many_as_there_is_room_for(link: NatsLink) -> None:
    for number in range(5):
        await link.publish("w.a", str(number).encode())
    puller = await puller_of(link, "a")
    taken = await puller.take(3)
    assert len(taken) <= 3
    while len(taken) < 3:
        taken += await puller.take(3 - len(taken))
    assert [msg.data for msg in taken] == [b"0", b"1", b"2"]
    assert all(msg.metadata.num_delivered == 1 for msg in taken)


async def test_several_durables_are_emptied_without_handing_out_more_than_is_wanted(link: NatsLink) -> None:
    for tag in TAGS:
        for _ in range(10):
            await link.publish(f"w.{tag}", tag.encode())
    puller = await puller_of(link, *TAGS)
    taken = await take_all(puller, 30)
    assert sorted(msg.data for msg in taken) == sorted([b"a", b"b", b"c"] * 10)
    assert {msg.metadata.num_delivered for msg in taken} == {1}


async def test_a_message_without_room_for_it_is_given_back_at_once(link: NatsLink) -> None:
    puller = await puller_of(link, *TAGS, expires_seconds=5.0)
    waiting = asyncio.create_task(puller.take(1, wait_seconds=10))
    await eventually(open_requests(link, *TAGS), what="all durables being asked")
    for tag in TAGS:
        await link.publish(f"w.{tag}", tag.encode())
    [first] = await waiting
    await first.ack()
    # Far below AckWait: the other two did not stay with the one who had no room.
    rest = await take_all(await puller_of(link, *TAGS), 2)
    assert sorted([first.data, *(msg.data for msg in rest)]) == [b"a", b"b", b"c"]


async def test_two_who_take_at_once_give_back_nothing_of_each_other(link: NatsLink) -> None:
    puller = await puller_of(link, "a", expires_seconds=5.0)
    takers = [asyncio.create_task(puller.take(1, wait_seconds=10)) for _ in range(2)]
    await eventually(open_requests(link, "a"), what="the durable being asked")
    await link.publish("w.a", b"0")
    await asyncio.wait(takers, return_when=asyncio.FIRST_COMPLETED)
    await link.publish("w.a", b"1")
    taken = [msg for messages in await asyncio.gather(*takers) for msg in messages]
    assert sorted(msg.data for msg in taken) == [b"0", b"1"]
    assert {msg.metadata.num_delivered for msg in taken} == {1}


async def test_many_who_take_at_once_from_several_durables_lose_nothing(link: NatsLink) -> None:
    puller = await puller_of(link, *TAGS)
    for number in range(30):
        await link.publish(f"w.{TAGS[number % 3]}", str(number).encode())
    taken = [msg for part in await asyncio.gather(*(take_all(puller, 10) for _ in range(3))) for msg in part]
    assert sorted(int(msg.data) for msg in taken) == list(range(30))
    assert {msg.metadata.num_delivered for msg in taken} == {1}


async def test_the_wait_for_ones_turn_is_part_of_the_wait(link: NatsLink) -> None:
    puller = await puller_of(link, "a", expires_seconds=60.0)
    first = asyncio.create_task(puller.take(1, wait_seconds=60))
    await eventually(open_requests(link, "a"), what="the durable being asked")
    begun = time.monotonic()
    assert await puller.take(1, wait_seconds=0.3) == []
    assert 0.29 <= time.monotonic() - begun < 20
    # What is there right now is for the one who has been waiting for it.
    assert await puller.take_now(1) == []
    await link.publish("w.a", b"for the first")
    [msg] = await first
    assert (msg.data, msg.metadata.num_delivered) == (b"for the first", 1)


async def test_a_puller_that_stops_ends_the_takes_that_are_under_way(link: NatsLink) -> None:
    puller = await puller_of(link, *TAGS, expires_seconds=60.0)
    takers = [asyncio.create_task(puller.take(1, wait_seconds=60)) for _ in range(2)]
    await eventually(open_requests(link, *TAGS), what="all durables being asked")
    begun = time.monotonic()
    await puller.stop()
    assert await asyncio.gather(*takers) == [[], []]
    assert time.monotonic() - begun < 20
    await link.publish("w.a", b"for others")
    [msg] = await take_all(await puller_of(link, "a"), 1)
    assert (msg.data, msg.metadata.num_delivered) == (b"for others", 1)


async def test_what_is_given_back_again_and_again_uses_up_few_deliveries(link: NatsLink) -> None:
    """The request for thirty is still open when there is room for one only: it brings the other one every time."""
    puller = await puller_of(link, "a", expires_seconds=3.0)
    assert await puller.take(30, wait_seconds=0.1) == []
    await link.publish("w.a", b"wanted")
    [wanted] = await puller.take(1)
    await wanted.ack()
    await link.publish("w.a", b"too much")

    async def is_asked_no_more() -> bool:
        return not await open_requests(link, "a")()

    await eventually(is_asked_no_more, what="the end of the request")
    [msg] = await take_all(await puller_of(link, "a"), 1)
    assert msg.data == b"too much"
    assert msg.metadata.num_delivered < 10


async def test_what_comes_after_the_wait_is_kept_for_the_next_call(link: NatsLink) -> None:
    puller = await puller_of(link, "a", expires_seconds=5.0)
    assert await puller.take(1, wait_seconds=0.1) == []
    await link.publish("w.a", b"late")
    [msg] = await puller.take(1, wait_seconds=5)
    assert (msg.data, msg.metadata.num_delivered) == (b"late", 1)


async def test_a_puller_that_stops_gives_back_messages_not_taken(link: NatsLink) -> None:
    puller = await puller_of(link, "a", expires_seconds=5.0)
    assert await puller.take(1, wait_seconds=0.1) == []
    await link.publish("w.a", b"late")

    async def delivered() -> bool:
        return bool((await link.jetstream.consumer_info("W", "d_a")).num_ack_pending)

    await eventually(delivered)
    await link.client.flush()
    await puller.stop()
    [msg] = await take_all(await puller_of(link, "a"), 1)
    assert (msg.data, msg.metadata.num_delivered) == (b"late", 2)


async def test_a_puller_that_has_stopped_is_handed_nothing_more_and_can_begin_anew(link: NatsLink) -> None:
    """An open request for thirty would be answered with one and the same job, thirty times."""
    puller = await puller_of(link, "a", expires_seconds=20.0)
    waiting = asyncio.create_task(puller.take(30, wait_seconds=20))
    await eventually(open_requests(link, "a"), what="the durable being asked")
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await puller.stop()
    await link.publish("w.a", b"for others")
    [msg] = await take_all(await puller_of(link, "a"), 1)
    assert (msg.data, msg.metadata.num_delivered) == (b"for others", 1)
    await link.publish("w.a", b"once more")
    [msg] = await take_all(puller, 1)
    assert (msg.data, msg.metadata.num_delivered) == (b"once more", 1)


async def test_a_consumer_that_is_missing_is_found_once_it_is_made(link: NatsLink) -> None:
    puller = await puller_of(link, "a", "z", expires_seconds=5.0)
    assert await puller.take(1, wait_seconds=0.6) == []
    await link.jetstream.add_consumer("W", consumer("z"))
    await link.publish("w.z", b"found")
    [msg] = await take_all(puller, 1)
    assert msg.data == b"found"


@pytest.mark.own_nats
async def test_a_wait_that_spans_a_restart_of_the_server_goes_on_afterwards(nats_server: NatsServer) -> None:
    async with linked(nats_server) as link:
        puller = await puller_of(link, *TAGS, expires_seconds=60.0)
        waiting = asyncio.create_task(puller.take(1, wait_seconds=60))
        await eventually(open_requests(link, *TAGS), what="all durables being asked")
        nats_server.kill()
        await eventually(lambda: link.down_because is not None)
        nats_server.start()
        await eventually(lambda: link.down_because is None)
        await link.publish("w.b", b"after")
        begun = time.monotonic()
        try:
            taken = await waiting
        except NatsUnavailable:
            taken = []
        taken = taken or await puller.take(1)
        assert [msg.data for msg in taken] == [b"after"]
        assert time.monotonic() - begun < 20


@pytest.mark.own_nats
async def test_while_nats_is_away_a_take_is_refused_at_once(nats_server: NatsServer) -> None:
    async with linked(nats_server) as link:
        puller = await puller_of(link, "a")
        nats_server.kill()
        await eventually(lambda: link.down_because is not None)
        with pytest.raises(NatsUnavailable):
            await puller.take(1, wait_seconds=30)
