"""While NATS is away or refuses, the link reports it, fails fast, and leaves nothing behind."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from nats.js import api

from fleet_kit.errors import NatsUnavailable
from fleet_kit.nats.link import NatsLink, NatsSilent, WriteRefused
from fleet_kit.nats.outages import NoSpaceLeft
from fleet_kit.nats.resources import ensure_bucket, ensure_stream
from fleet_kit.nats.stores.kv import Mirror
from fleet_kit.settings import FleetSettings
from fleet_testkit.buckets import Bucket
from fleet_testkit.nats_links import ready_link
from fleet_testkit.nats_server import NatsServer
from fleet_testkit.waiting import eventually

# Whatever comes far sooner than this was no timeout.
patient = pytest.mark.parametrize("link", [60.0], indirect=True)

STREAM = api.StreamConfig(name="S", subjects=["s.>"])


@pytest.fixture(params=[1.0])
async def link(request: pytest.FixtureRequest, nats_server: NatsServer) -> AsyncIterator[NatsLink]:
    async def prepare(link: NatsLink) -> None:
        await ensure_stream(link.jetstream, STREAM)
        await ensure_bucket(link.jetstream, "things")

    async with ready_link(nats_server.url, timeout_seconds=request.param, prepare=prepare) as link:
        yield link


@pytest.mark.own_nats
async def test_a_link_may_be_left_at_once(nats_server: NatsServer) -> None:
    nats_server.stop()
    async with NatsLink(FleetSettings(nats_url=nats_server.url), name="test"):
        pass


@pytest.mark.own_nats
async def test_what_the_client_library_reports_is_logged_with_the_problems_ids(
    nats_server: NatsServer, caplog: pytest.LogCaptureFixture
) -> None:
    nats_server.stop()
    async with NatsLink(FleetSettings(nats_url=nats_server.url), name="test"):
        await eventually(lambda: caplog.records)
    line = caplog.records[0]
    assert line.levelno == logging.WARNING
    assert line.__dict__["err_id"] == "ERR-PYOCO-0003"
    assert line.exc_info


@pytest.mark.own_nats
@patient
async def test_a_publish_while_nats_is_away_fails_at_once_and_never_arrives(
    link: NatsLink, nats_server: NatsServer
) -> None:
    nats_server.kill()
    await eventually(lambda: link.down_because is not None)
    begun = time.monotonic()
    with pytest.raises(NatsUnavailable) as refusal:
        await link.publish("s.a", b"too late")
    assert time.monotonic() - begun < 20
    assert refusal.value.meta["reason"]
    nats_server.start()
    await eventually(lambda: link.down_because is None)
    assert (await link.stream_info("S")).state.messages == 0


@pytest.mark.own_nats
async def test_publishes_in_flight_fail_as_soon_as_the_connection_is_lost(
    link: NatsLink, nats_server: NatsServer
) -> None:
    nats_server.pause()
    futures = [await link.publish_nowait("s.a", b"x") for _ in range(10)]
    nats_server.kill()
    async with asyncio.timeout(30):
        outcomes = await asyncio.gather(*futures, return_exceptions=True)
    assert {type(outcome) for outcome in outcomes} == {NatsUnavailable}


@pytest.mark.own_nats
async def test_a_server_that_does_not_answer_is_given_up_after_the_timeout(
    link: NatsLink, nats_server: NatsServer
) -> None:
    nats_server.pause()
    begun = time.monotonic()
    with pytest.raises(NatsSilent):
        await link.publish("s.a", b"x")
    with pytest.raises(NatsUnavailable):
        await Bucket(link, "things").get("a")
    assert time.monotonic() - begun < 20
    nats_server.resume()
    await link.publish("s.a", b"y")


async def test_a_process_that_stood_still_does_not_take_that_for_the_silence_of_nats(link: NatsLink) -> None:
    things = Bucket(link, "things")
    await things.put("a", b"x")
    asking = [asyncio.create_task(things.get("a")) for _ in range(10)]
    acks = [await link.publish_nowait("s.a", b"x") for _ in range(10)]
    await asyncio.sleep(0)
    time.sleep(2.0)  # noqa: ASYNC251 - twice the time that NATS has to answer
    assert [entry and entry.value for entry in await asyncio.gather(*asking)] == [b"x"] * 10
    assert {ack.stream for ack in await asyncio.gather(*acks)} == {"S"}


@pytest.mark.own_nats
async def test_a_process_that_keeps_standing_still_gives_up_all_the_same(
    link: NatsLink, nats_server: NatsServer
) -> None:
    nats_server.pause()
    ack = await link.publish_nowait("s.a", b"x")
    while not ack.done():
        time.sleep(0.5)  # noqa: ASYNC251
        await asyncio.sleep(0)
    with pytest.raises(NatsSilent):
        await ack


@patient
async def test_a_subject_that_no_stream_takes_is_refused_at_once(link: NatsLink) -> None:
    begun = time.monotonic()
    with pytest.raises(NatsUnavailable, match="no stream takes this subject"):
        await link.publish("nobody.cares", b"x")
    assert time.monotonic() - begun < 20


async def test_a_write_that_jetstream_refuses_says_why(link: NatsLink) -> None:
    limited = api.StreamConfig(name="FULL", subjects=["full"], max_msgs=1, discard=api.DiscardPolicy.NEW)
    await ensure_stream(link.jetstream, limited)
    await link.publish("full", b"1")
    with pytest.raises(WriteRefused, match="maximum messages exceeded"):
        await link.publish("full", b"2")


async def test_a_server_without_space_says_so_until_it_takes_a_write_again(tmp_path: Path) -> None:
    server = NatsServer(tmp_path, jetstream_options=", max_file_store: 64KB")
    with server.running():
        async with NatsLink(FleetSettings(nats_url=server.url), name="test") as link:
            async with asyncio.timeout(30):
                await link.wait_ready()
            await ensure_stream(link.jetstream, STREAM)
            await link.publish("s.a", b"x")
            assert link.full_because is None
            with pytest.raises(NoSpaceLeft, match="free some and try again"):
                await _publish_for_ever(link)
            assert link.full_because == "no space is left on the disk of NATS"
            # A worker waits it out; after a refusal it would have the run executed once more.
            assert not issubclass(NoSpaceLeft, WriteRefused)
            assert link.down_because is None
            await link.jetstream.purge_stream("S")
            await link.publish("s.a", b"x")
            assert link.full_because is None


async def _publish_for_ever(link: NatsLink) -> None:
    while True:
        await link.publish("s.a", bytes(4096))


async def test_a_repeated_message_id_is_one_message(link: NatsLink) -> None:
    first = await link.publish("s.a", b"x", {"Nats-Msg-Id": "m1"})
    second = await link.publish("s.a", b"x", {"Nats-Msg-Id": "m1"})
    assert (first.duplicate, second.duplicate) == (False, True)
    assert first.sequence == second.sequence


async def test_a_link_is_not_ready_before_its_hooks_have_succeeded_and_says_what_is_wrong(
    nats_server: NatsServer, caplog: pytest.LogCaptureFixture
) -> None:
    obstacle = ["the cupboard is locked"]

    async def prepare() -> None:
        if obstacle:
            raise RuntimeError(obstacle[0])

    link = NatsLink(FleetSettings(nats_url=nats_server.url), name="test")
    link.after_connect(prepare)
    async with link:
        await eventually(lambda: link.down_because == "preparing: the cupboard is locked")
        with pytest.raises(NatsUnavailable, match="the cupboard is locked"):
            link.require()
        obstacle.clear()
        async with asyncio.timeout(30):
            await link.wait_ready()
        assert link.down_because is None
    assert any(record.exc_info for record in caplog.records)


@pytest.mark.own_nats
async def test_a_mirror_reports_every_change_also_those_that_happened_during_an_outage(
    link: NatsLink, nats_server: NatsServer
) -> None:
    changes: list[tuple[str, bytes | None]] = []
    mirror = Mirror(link, "things", on_change=lambda key, value: changes.append((key, value)))
    link.after_connect(mirror.restart)
    await mirror.restart()
    bucket = Bucket(link, "things")
    await bucket.put("a", b"1")
    second = await bucket.put("b", b"2")
    await eventually(lambda: changes == [("a", b"1"), ("b", b"2")])
    assert mirror.revision == second
    await bucket.delete("b")
    await eventually(lambda: changes[2:] == [("b", None)])
    nats_server.kill()
    await eventually(lambda: link.down_because is not None)
    nats_server.wipe()
    nats_server.start()
    await eventually(lambda: changes[3:] == [("a", None)], what="the change of the wiped key")
    assert (mirror.values, mirror.revision) == ({}, 0)
    await mirror.stop()
