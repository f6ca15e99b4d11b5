"""Reading the messages of one subject page by page: in order, whole, and never more than asked for."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from nats.js import api

from fleet_kit.errors import NatsUnavailable
from fleet_kit.nats.link import NatsLink
from fleet_kit.nats.messages import StoredMessage, latest_message, messages_of
from fleet_kit.nats.resources import ensure_stream
from fleet_testkit.nats_links import ready_link
from fleet_testkit.nats_server import NatsServer
from fleet_testkit.waiting import eventually

DIRECT = api.StreamConfig(name="DIRECT", subjects=["direct.>"], allow_direct=True)
INDIRECT = api.StreamConfig(name="INDIRECT", subjects=["indirect.>"], allow_direct=False)


@pytest.fixture
async def link(nats_server: NatsServer) -> AsyncIterator[NatsLink]:
    async def prepare(link: NatsLink) -> None:
        await ensure_stream(link.jetstream, DIRECT)
        await ensure_stream(link.jetstream, INDIRECT)

    async with ready_link(nats_server.url, timeout_seconds=1.0, prepare=prepare) as link:
        yield link


async def publish_to_both_subjects(link: NatsLink, stream: str, count: int, *, size: int = 1) -> None:
    """The messages of the subject `a` are numbered; those of `b` lie between them."""
    prefix = stream.lower()
    for number in range(count):
        await link.publish(f"{prefix}.a", str(number).encode().rjust(size))
        await link.publish(f"{prefix}.b", b"of no interest")


def numbers(messages: list[StoredMessage]) -> list[int]:
    return [int(message.data) for message in messages]


@pytest.mark.parametrize("stream", ["DIRECT", "INDIRECT"])
async def test_a_subject_is_read_in_order_page_by_page(link: NatsLink, stream: str) -> None:
    await publish_to_both_subjects(link, stream, 10)
    subject = f"{stream.lower()}.a"
    seen: list[int] = []
    after = 0
    while page := await messages_of(link, stream, subject, after=after, limit=4):
        assert len(page) <= 4
        assert {message.subject for message in page} == {subject}
        seen += numbers(page)
        after = page[-1].sequence
    assert seen == list(range(10))
    assert await messages_of(link, stream, subject, after=after + 1000) == []
    assert await messages_of(link, stream, f"{stream.lower()}.nobody") == []
    # What comes later is found from where the reader stands.
    await publish_to_both_subjects(link, stream, 1)
    assert numbers(await messages_of(link, stream, subject, after=after)) == [0]


async def test_a_page_ends_with_the_message_that_reaches_its_size(link: NatsLink) -> None:
    await publish_to_both_subjects(link, "DIRECT", 6, size=1000)
    assert numbers(await messages_of(link, "DIRECT", "direct.a", max_bytes=2500)) == [0, 1, 2]
    assert numbers(await messages_of(link, "DIRECT", "direct.a", max_bytes=1)) == [0]


async def test_many_readers_at_once_get_their_own_pages(link: NatsLink) -> None:
    await publish_to_both_subjects(link, "DIRECT", 30)
    pages = await asyncio.gather(
        *(messages_of(link, "DIRECT", "direct.a", after=2 * start, limit=5) for start in range(20))
    )
    assert [numbers(page) for page in pages] == [list(range(start, start + 5)) for start in range(20)]


async def test_a_stream_that_is_not_there_is_unavailable(link: NatsLink) -> None:
    with pytest.raises(NatsUnavailable):
        await messages_of(link, "NOBODY", "nobody.a")


@pytest.mark.own_nats
async def test_a_silent_or_absent_server_is_reported_as_such_and_reading_goes_on_afterwards(
    link: NatsLink, nats_server: NatsServer
) -> None:
    await publish_to_both_subjects(link, "DIRECT", 3)
    nats_server.pause()
    with pytest.raises(NatsUnavailable):
        await messages_of(link, "DIRECT", "direct.a")
    waiting = asyncio.create_task(messages_of(link, "DIRECT", "direct.a"))
    await asyncio.sleep(0)  # let it ask
    nats_server.kill()
    with pytest.raises(NatsUnavailable):
        await waiting
    nats_server.start()

    async def page() -> list[StoredMessage]:
        try:
            return await messages_of(link, "DIRECT", "direct.a")
        except NatsUnavailable:
            return []

    assert numbers(await eventually(page, within=30)) == [0, 1, 2]


@pytest.mark.parametrize("stream", ["DIRECT", "INDIRECT"])
async def test_the_latest_message_of_many_subjects_is_found_by_a_pattern(link: NatsLink, stream: str) -> None:
    pattern = f"{stream.lower()}.x.>"
    assert await latest_message(link, stream, pattern) is None
    for name in ("x.a", "x.b", "y.c"):
        await link.publish(f"{stream.lower()}.{name}", name.encode())
    found = await latest_message(link, stream, pattern)
    assert found is not None
    assert (found.data, found.subject) == (b"x.b", f"{stream.lower()}.x.b")
    assert found.stored_at > 0
