"""Typed values of a bucket are changed by one loop: no change is lost, and a stale read decides nothing."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from fleet_contracts.messages import Document, MalformedMessage
from fleet_kit.nats.link import NatsLink, WrongRevision
from fleet_kit.nats.resources import ensure_bucket
from fleet_kit.nats.stores.documents import Documents, Stored
from fleet_kit.nats.stores.kv import Entry
from fleet_kit.settings import FleetSettings
from fleet_testkit.buckets import Bucket
from fleet_testkit.nats_server import NatsServer


class Counter(Document):
    count: int = 0

    def raised(self) -> "Counter":
        return self.model_copy(update={"count": self.count + 1})


class LaggingBucket(Bucket):
    """Answers direct gets from what was there when `freeze` was called, as a server of a cluster that lags behind."""

    frozen: tuple[Entry | None, int] | None = None

    async def freeze(self, key: str) -> None:
        self.frozen = await super().look_up(key)

    async def look_up(self, key: str, *, linearizable: bool = False) -> tuple[Entry | None, int]:
        if self.frozen is not None and not linearizable:
            return self.frozen
        return await super().look_up(key, linearizable=linearizable)


@pytest.fixture
async def link(nats_server: NatsServer) -> AsyncIterator[NatsLink]:
    async with NatsLink(FleetSettings(nats_url=nats_server.url), name="test") as link:
        link.after_connect(lambda: ensure_bucket(link.jetstream, "things"))
        async with asyncio.timeout(30):
            await link.wait_ready()
        yield link


@pytest.fixture
def bucket(link: NatsLink) -> LaggingBucket:
    return LaggingBucket(link, "things")


@pytest.fixture
def counters(bucket: Bucket) -> Documents[Counter]:
    return Documents(bucket, Counter)


def raise_count(counter: Counter | None) -> Counter:
    return Counter(count=1) if counter is None else counter.raised()


def leave(counter: Counter | None) -> Counter | None:
    return counter


async def test_no_change_is_lost_however_many_writers_there_are(counters: Documents[Counter]) -> None:
    conflicts: list[int] = []
    results = await asyncio.gather(
        *(counters.change("a", raise_count, on_conflict=lambda: conflicts.append(1)) for _ in range(20))
    )
    stored = await counters.read("a")
    assert stored is not None
    assert stored.value.count == 20
    assert sorted(result.value.count for result in results if result is not None) == list(range(1, 21))
    assert conflicts


async def test_a_missing_key_is_created_also_over_the_marker_of_a_deleted_one(
    bucket: Bucket, counters: Documents[Counter]
) -> None:
    created = await counters.change("a", raise_count)
    assert created is not None
    assert created == Stored(Counter(count=1), created.revision, is_new=True)
    await bucket.delete("a")
    again = await counters.change("a", raise_count)
    assert again == Stored(Counter(count=1), created.revision + 2, is_new=True)


async def test_nothing_is_written_if_the_transition_changes_nothing(counters: Documents[Counter]) -> None:
    assert await counters.change("a", leave) is None
    created = await counters.change("a", raise_count)
    assert created is not None
    for nothing in (leave, lambda _: None, lambda counter: counter.model_copy()):
        assert await counters.change("a", nothing) == Stored(created.value, created.revision)


async def test_a_stale_read_is_no_reason_to_leave_something_undone(
    link: NatsLink, bucket: LaggingBucket, counters: Documents[Counter]
) -> None:
    def only_a_second_time(counter: Counter | None) -> Counter | None:
        return None if counter is None else counter.raised()

    await bucket.freeze("a")
    assert await counters.change("a", only_a_second_time) is None
    await Documents(Bucket(link, "things"), Counter).change("a", raise_count)
    changed = await counters.change("a", only_a_second_time)
    assert changed is not None
    assert changed.value.count == 2
    changed = await counters.change("a", raise_count)
    assert changed is not None
    assert changed.value.count == 3


async def test_what_a_transition_raises_ends_the_change(counters: Documents[Counter]) -> None:
    def refuse(_: Counter | None) -> Counter:
        raise RuntimeError("not this one")

    created = await counters.change("a", raise_count)
    assert created is not None
    with pytest.raises(RuntimeError, match="not this one"):
        await counters.change("a", refuse)
    assert await counters.read("a") == Stored(created.value, created.revision)


async def test_a_transition_may_ask_somebody_first(counters: Documents[Counter]) -> None:
    async def slowly(counter: Counter | None) -> Counter:
        await asyncio.sleep(0)
        return raise_count(counter)

    results = await asyncio.gather(*(counters.change("a", slowly) for _ in range(5)))
    assert sorted(result.value.count for result in results if result is not None) == [1, 2, 3, 4, 5]


async def test_a_known_value_is_changed_and_read_again_only_if_it_was_written_since(
    counters: Documents[Counter],
) -> None:
    first = await counters.change("a", raise_count)
    assert first is not None
    second = await counters.change("a", raise_count, known=first)
    assert second is not None
    assert second.value.count == 2
    third = await counters.change("a", raise_count, known=first)
    assert third is not None
    assert third.value.count == 3


async def test_a_key_of_another_revision_than_the_one_meant_is_left_alone(counters: Documents[Counter]) -> None:
    first = await counters.change("a", raise_count)
    assert first is not None
    second = await counters.change("a", raise_count, only_revision=first.revision)
    assert second is not None
    assert second.is_new
    left = await counters.change("a", raise_count, only_revision=first.revision)
    assert left == Stored(second.value, second.revision)


async def test_an_unreadable_value_is_refused_or_replaced(bucket: Bucket, counters: Documents[Counter]) -> None:
    revision = await bucket.create("a", b"no counter")
    with pytest.raises(MalformedMessage):
        await counters.change("a", raise_count)
    with pytest.raises(MalformedMessage):
        await counters.read("a")
    assert await counters.read("a", lenient=True) is None
    assert await counters.change("a", leave, lenient=True) is None
    replaced = await counters.change("a", raise_count, lenient=True)
    assert replaced == Stored(Counter(count=1), revision + 1, is_new=True)


async def test_a_change_that_is_always_late_is_given_up(bucket: Bucket, counters: Documents[Counter]) -> None:
    tries: list[int] = []

    async def too_late(counter: Counter | None) -> Counter:
        tries.append(1)
        await bucket.put("a", Counter(count=100 + len(tries)).encode())
        return raise_count(counter)

    with pytest.raises(WrongRevision):
        await counters.change("a", too_late, most_tries=3)
    assert len(tries) == 3
