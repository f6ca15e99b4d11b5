"""Objects in the JetStream object store's format: written, listed, read, replaced and deleted as any client would."""

import asyncio
import hashlib
import io
import os
import time
from collections.abc import AsyncIterable, AsyncIterator

import pytest
from nats.js import JetStreamContext
from nats.js.api import ObjectMeta, StreamConfig
from nats.js.errors import ObjectNotFoundError

from fleet_kit.errors import NatsUnavailable
from fleet_kit.nats.link import NatsLink, WrongRevision
from fleet_kit.nats.resources import ensure_object_store
from fleet_kit.nats.stores.object_writing import DraftTooOld, ObjectWriter
from fleet_kit.nats.stores.objects import ObjectDamaged, ObjectStore, StoredObject
from fleet_testkit.nats_links import PausesBeforeNaming, ready_link
from fleet_testkit.nats_server import NatsServer
from fleet_testkit.waiting import eventually

BUCKET = "things"
CHUNK = 128 * 1024


@pytest.fixture
async def link(nats_server: NatsServer) -> AsyncIterator[NatsLink]:
    async def prepare(link: NatsLink) -> None:
        await ensure_object_store(link.jetstream, BUCKET)

    async with ready_link(nats_server.url, timeout_seconds=1.0, prepare=prepare) as link:
        yield link


@pytest.fixture
def store(link: NatsLink) -> ObjectWriter:
    return ObjectWriter(link, BUCKET)


async def pieces(data: bytes, size: int = 50_000) -> AsyncIterator[bytes]:
    for start in range(0, len(data), size):
        yield data[start : start + size]


async def write(
    store: ObjectWriter, name: str, source: AsyncIterable[bytes], *, headers: dict[str, str] | None = None
) -> StoredObject:
    async with store.draft(source) as draft:
        return await store.name(draft, name, headers=headers or {})


async def content(store: ObjectStore, stored: StoredObject, start: int = 0, stop: int | None = None) -> bytes:
    return b"".join([piece async for piece in store.read(stored, start=start, stop=stop)])


async def broken_off(reading: AsyncIterator[bytes]) -> tuple[bytes, str]:
    """What was read until it broke off, and why it did."""
    read = b""
    try:
        async for piece in reading:
            read += piece
    except ObjectDamaged as error:
        return read, error.message
    raise AssertionError("it was read to its end")


async def chunk_counts(js: JetStreamContext) -> dict[str, int]:
    """How many chunks each stored thing has, named or not."""
    info = await js.stream_info(f"OBJ_{BUCKET}", subjects_filter=f"$O.{BUCKET}.C.>")
    return {subject.rpartition(".")[2]: count for subject, count in (info.state.subjects or {}).items()}


@pytest.mark.parametrize("size", [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 20 * CHUNK + 17])
async def test_an_object_is_read_as_it_was_written(store: ObjectWriter, size: int) -> None:
    data = os.urandom(size)
    written = await write(store, "a thing/ü", pieces(data), headers={"x-color": "red"})
    found = await store.find("a thing/ü")
    assert found is not None
    assert (found.name, found.nuid, found.size, found.sequence) == (
        "a thing/ü",
        written.nuid,
        size,
        written.sequence,
    )
    assert found.headers == {"x-color": "red"}
    assert found.sha256_hex == hashlib.sha256(data).hexdigest()
    assert await content(store, found) == data


async def test_our_objects_are_read_by_other_clients(store: ObjectWriter, link: NatsLink) -> None:
    data = os.urandom(3 * CHUNK + 5)
    written = await write(store, "thing", pieces(data), headers={"x-color": "red"})
    theirs = await link.jetstream.object_store(BUCKET)
    buffer = io.BytesIO()
    result = await theirs.get("thing", writeinto=buffer)
    assert buffer.getvalue() == data
    assert (result.info.nuid, result.info.size, result.info.chunks) == (written.nuid, len(data), 4)
    assert result.info.headers == {"x-color": "red"}
    assert [info.name for info in await theirs.list(ignore_deletes=True)] == ["thing"]
    await store.delete(written, headers={})
    with pytest.raises(ObjectNotFoundError):
        await theirs.get("thing")


async def test_objects_of_other_clients_are_read_by_us(store: ObjectWriter, link: NatsLink) -> None:
    data = os.urandom(3 * CHUNK + 5)
    theirs = await link.jetstream.object_store(BUCKET)
    info = await theirs.put("thing", io.BytesIO(data), meta=ObjectMeta(name="thing", headers={"x-color": "red"}))
    found = await store.find("thing")
    assert found is not None
    assert (found.nuid, found.size, found.headers) == (info.nuid, len(data), {"x-color": "red"})
    assert await content(store, found) == data
    # And the other way round: what they delete is gone for us.
    await theirs.delete("thing")
    assert await store.find("thing") is None
    assert [stored.name for stored in (await store.list()).deleted] == ["thing"]


async def test_headers_that_are_lists_are_understood(store: ObjectWriter, link: NatsLink) -> None:
    theirs = await link.jetstream.object_store(BUCKET)
    await theirs.put("thing", b"x", meta=ObjectMeta(name="thing", headers={"x-color": ["red", "blue"]}))
    found = await store.find("thing")
    assert found is not None
    assert found.headers == {"x-color": "red"}


async def test_the_list_has_every_living_object_and_the_sequence_of_the_last_change(store: ObjectWriter) -> None:
    assert (await store.list()).sequence == 0
    for number in range(600):
        await write(store, f"thing-{number}", pieces(b"x"))
    replaced = await write(store, "thing-3", pieces(b"new"))
    five = await store.find("thing-5")
    assert five is not None
    assert await store.delete(five, headers={})
    listing = await store.list()
    assert len(listing.objects) == 599
    assert {stored.name for stored in listing.objects} == {f"thing-{n}" for n in range(600) if n != 5}
    assert next(stored for stored in listing.objects if stored.name == "thing-3").nuid == replaced.nuid
    assert [stored.name for stored in listing.deleted] == ["thing-5"]
    assert listing.sequence == listing.deleted[0].sequence > replaced.sequence


async def test_what_is_no_object_is_passed_over_and_still_counts_as_a_change(
    store: ObjectWriter, link: NatsLink
) -> None:
    await write(store, "thing", pieces(b"x"))
    ack = await link.publish(f"$O.{BUCKET}.M.bm9uc2Vuc2U=", b"nonsense")
    listing = await store.list()
    assert [stored.name for stored in listing.objects] == ["thing"]
    assert listing.sequence == ack.sequence
    assert await store.find("nonsense") is None


async def test_the_old_chunks_of_a_replaced_or_deleted_object_are_gone(store: ObjectWriter, link: NatsLink) -> None:
    await write(store, "thing", pieces(os.urandom(3 * CHUNK)))
    second = await write(store, "thing", pieces(os.urandom(2 * CHUNK)))
    assert await chunk_counts(link.jetstream) == {second.nuid: 2}
    assert await store.delete(second, headers={})
    assert await chunk_counts(link.jetstream) == {}
    assert await store.find("thing") is None
    # A name may come back.
    third = await write(store, "thing", pieces(b"third"))
    assert await content(store, third) == b"third"


async def test_an_object_that_changed_since_it_was_found_is_not_deleted(store: ObjectWriter) -> None:
    first = await write(store, "thing", pieces(b"first"))
    second = await write(store, "thing", pieces(b"second"))
    assert not await store.delete(first, headers={})
    assert await content(store, second) == b"second"


@pytest.mark.parametrize(
    ("start", "stop"),
    [(0, 1), (5, 5), (CHUNK - 1, CHUNK + 1), (7 * CHUNK, 9 * CHUNK), (11 * CHUNK + 3, None), (12 * CHUNK - 1, 99**9)],
)
async def test_a_part_of_an_object_is_read_from_between_the_chunks_of_others(
    store: ObjectWriter, start: int, stop: int | None
) -> None:
    data, other = os.urandom(12 * CHUNK), os.urandom(12 * CHUNK)
    async with store.draft(pieces(os.urandom(CHUNK))):
        stored, _ = await asyncio.gather(write(store, "thing", pieces(data)), write(store, "other", pieces(other)))
    assert await content(store, stored, start, stop) == data[start:stop]


async def test_the_end_of_a_large_object_is_reached_without_reading_all_of_it(
    store: ObjectWriter, link: NatsLink
) -> None:
    data = os.urandom(100 * CHUNK)
    stored = await write(store, "thing", pieces(data))
    before = link.client.stats["in_bytes"]
    assert await content(store, stored, len(data) - 10) == data[-10:]
    assert link.client.stats["in_bytes"] - before < 5 * CHUNK


async def test_a_draft_without_a_name_is_thrown_away(store: ObjectWriter, link: NatsLink) -> None:
    async with store.draft(pieces(os.urandom(3 * CHUNK))) as draft:
        assert await chunk_counts(link.jetstream) == {draft.nuid: 3}
    assert await chunk_counts(link.jetstream) == {}
    assert (await store.list()).sequence == 0


async def test_a_source_that_fails_leaves_nothing_behind(store: ObjectWriter, link: NatsLink) -> None:
    async def failing() -> AsyncIterator[bytes]:
        yield os.urandom(5 * CHUNK)
        raise ValueError("no more")

    with pytest.raises(ValueError, match="no more"):
        await write(store, "thing", failing())
    assert await chunk_counts(link.jetstream) == {}
    assert (await store.list()).sequence == 0


@pytest.mark.parametrize("round_", range(8))
async def test_a_writer_that_is_cancelled_leaves_nothing_behind(
    store: ObjectWriter, link: NatsLink, round_: int
) -> None:
    """Several rounds: what is on its way at that moment differs."""

    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield os.urandom(CHUNK)
            await asyncio.sleep(0)

    writing = asyncio.create_task(write(store, "thing", endless()))

    async def some_chunks() -> bool:
        return sum((await chunk_counts(link.jetstream)).values()) > 20

    await eventually(some_chunks)
    writing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await writing
    assert await chunk_counts(link.jetstream) == {}
    assert (await store.list()).sequence == 0


async def test_only_one_of_many_writers_that_saw_the_same_list_wins(store: ObjectWriter, link: NatsLink) -> None:
    await write(store, "thing", pieces(b"x"))
    listing = await store.list()

    async def enter(number: int) -> StoredObject:
        async with store.draft(pieces(b"y" * CHUNK)) as draft:
            return await store.name(draft, f"thing-{number}", headers={}, after=listing.sequence)

    outcomes = await asyncio.gather(*(enter(number) for number in range(10)), return_exceptions=True)
    winners = [outcome for outcome in outcomes if isinstance(outcome, StoredObject)]
    assert len(winners) == 1
    assert sum(isinstance(outcome, WrongRevision) for outcome in outcomes) == 9
    assert {stored.name for stored in (await store.list()).objects} == {"thing", winners[0].name}
    assert len(await chunk_counts(link.jetstream)) == 2


async def test_the_first_object_of_a_store_may_be_expected_to_be_the_first(store: ObjectWriter) -> None:
    async with store.draft(pieces(b"x")) as draft:
        await store.name(draft, "thing", headers={}, after=0)
    async with store.draft(pieces(b"y")) as draft:
        with pytest.raises(WrongRevision):
            await store.name(draft, "other", headers={}, after=0)
        # The draft is still good for another try.
        await store.name(draft, "other", headers={}, after=(await store.list()).sequence)
    assert len((await store.list()).objects) == 2


async def test_a_damaged_object_is_never_read_to_its_end(store: ObjectWriter, link: NatsLink) -> None:
    data = os.urandom(3 * CHUNK)
    stored = await write(store, "thing", pieces(data))
    await link.publish(f"$O.{BUCKET}.C.{stored.nuid}", b"more")
    read, _ = await broken_off(store.read(stored))
    assert len(read) < len(data)


async def test_an_object_whose_bytes_differ_from_its_digest_is_never_read_to_its_end(
    store: ObjectWriter, link: NatsLink
) -> None:
    stored = await write(store, "thing", pieces(os.urandom(CHUNK)))
    await store.purge(stored.nuid)
    await link.publish(f"$O.{BUCKET}.C.{stored.nuid}", os.urandom(CHUNK))
    read, why = await broken_off(store.read(stored))
    assert read == b""
    assert "digest" in why


async def test_an_object_that_vanishes_while_it_is_read_is_not_read_to_its_end(store: ObjectWriter) -> None:
    data = os.urandom(64 * CHUNK)
    stored = await write(store, "thing", pieces(data))
    reading = store.read(stored)
    first = await anext(reading)
    await store.delete(stored, headers={})
    rest, why = await broken_off(reading)
    assert len(first + rest) < len(data)
    assert "ends after" in why


async def test_direct_gets_are_allowed_on_a_store_that_somebody_else_made_without_them(
    store: ObjectWriter, link: NatsLink
) -> None:
    await link.jetstream.add_stream(
        StreamConfig(
            name="OBJ_old", subjects=["$O.old.C.>", "$O.old.M.>"], allow_rollup_hdrs=True, description="ours"
        )
    )
    await ensure_object_store(link.jetstream, "old")
    config = (await link.jetstream.stream_info("OBJ_old")).config
    assert (config.allow_direct, config.description) == (True, "ours")


@pytest.mark.own_nats
async def test_an_object_whose_naming_was_never_answered_is_taken_back(
    link: NatsLink, nats_server: NatsServer
) -> None:
    store = PausesBeforeNaming(link, BUCKET, nats_server)
    try:
        with pytest.raises(NatsUnavailable):
            await write(store, "thing", pieces(os.urandom(2 * CHUNK)))
    finally:
        store.resume()
    # The server had the message in its socket, and takes it now.

    async def objects() -> list[str]:
        try:
            return [stored.name for stored in (await store.list()).objects]
        except NatsUnavailable:
            return []

    assert await eventually(objects, within=20) == ["thing"]

    async def no_headers(_: StoredObject) -> dict[str, str]:
        return {}

    await store.clear_leftovers(no_headers)
    assert await objects() == []
    assert await chunk_counts(link.jetstream) == {}


async def leave_orphan(link: NatsLink) -> None:
    """What a writer leaves that was killed in the middle."""
    await link.publish(f"$O.{BUCKET}.C.orphan", os.urandom(CHUNK))
    await link.publish(f"$O.{BUCKET}.C.orphan", os.urandom(CHUNK))


async def test_orphan_chunks_are_swept_and_nothing_else(link: NatsLink) -> None:
    store = ObjectWriter(link, BUCKET, draft_seconds=0.1)
    kept = await write(store, "thing", pieces(os.urandom(2 * CHUNK)))
    await leave_orphan(link)

    async def is_swept() -> bool:
        return await store.sweep_orphans() == 1

    await eventually(is_swept)
    assert await chunk_counts(link.jetstream) == {kept.nuid: 2}


async def test_bytes_that_somebody_may_be_writing_are_not_swept(link: NatsLink) -> None:
    store = ObjectWriter(link, BUCKET, draft_seconds=60)
    await leave_orphan(link)
    assert await store.sweep_orphans() == 0
    assert await chunk_counts(link.jetstream) == {"orphan": 2}


async def test_a_draft_that_might_be_swept_gets_no_name_any_more(link: NatsLink) -> None:
    store = ObjectWriter(link, BUCKET, draft_seconds=0.01)
    async with store.draft(pieces(os.urandom(CHUNK))) as draft:
        await eventually(lambda: time.monotonic() - draft.stored_at > 0.02)
        with pytest.raises(DraftTooOld):
            await store.name(draft, "thing", headers={})
    assert (await store.list()).objects == []
    assert await chunk_counts(link.jetstream) == {}


async def test_a_deleted_objects_name_may_keep_other_headers(store: ObjectWriter) -> None:
    stored = await write(store, "thing", pieces(b"x"), headers={"x-color": "red"})
    await store.delete(stored, headers={"x-deleted-by": "me"})
    [deleted] = (await store.list()).deleted
    assert deleted.headers == {"x-deleted-by": "me"}


async def test_a_slow_writer_is_not_disturbed_by_another_process_that_sweeps(link: NatsLink) -> None:
    slow, sweeping = (ObjectWriter(link, BUCKET, draft_seconds=0.5) for _ in range(2))
    data = os.urandom(30 * CHUNK)
    over = asyncio.Event()

    async def slowly() -> AsyncIterator[bytes]:
        async for piece in pieces(data, CHUNK):
            yield piece
            await asyncio.sleep(0.05)  # all in all longer than what counts as an orphan

    async def sweep() -> int:
        swept = 0
        while not over.is_set():
            swept += await sweeping.sweep_orphans()
        return swept

    sweeper = asyncio.create_task(sweep())
    try:
        stored = await write(slow, "thing", slowly())
    finally:
        over.set()
    assert await sweeper == 0
    assert await content(slow, stored) == data
