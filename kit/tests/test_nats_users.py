"""A link with a NATS user of its own: where its seed comes from, what it may do, what happens when it is refused."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import nats.errors
import pytest
from nats.aio.msg import Msg
from nats.js.api import StreamConfig

from fleet_contracts.nats_roles import NatsUser, Permissions, accounts_config
from fleet_kit.errors import NatsUnavailable
from fleet_kit.files.nkeys import Nkey, make_nkey
from fleet_kit.nats.link import NatsLink, WriteRefused
from fleet_kit.settings import FleetSettings, SettingsError
from fleet_testkit.nats_server import NatsServer
from fleet_testkit.waiting import eventually

ALLOWED = ("fine.>", "$JS.API.STREAM.INFO.FINE", "$JS.API.STREAM.CREATE.FINE", "$JS.API.DIRECT.GET.FINE.fine.a")


@pytest.fixture
def seed_file(tmp_path: Path) -> Path:
    return tmp_path / "credentials" / "user.nk"


@pytest.fixture
def nkey(seed_file: Path) -> Nkey:
    return make_nkey(seed_file)


def users(*keys: Nkey, publish: tuple[str, ...] = ALLOWED) -> str:
    return accounts_config([NatsUser("user", key.public_key, Permissions(publish)) for key in keys], [])


@pytest.fixture
def guarded(tmp_path: Path, nkey: Nkey) -> Iterator[NatsServer]:
    server = NatsServer(tmp_path / "nats", more_config=users(nkey))
    server.start()
    yield server
    server.kill()


@asynccontextmanager
async def connected(server: NatsServer, seed_file: Path) -> AsyncIterator[NatsLink]:
    settings = FleetSettings.load(nats_url=server.url, nats_nkey_file=seed_file, nats_request_timeout_sec=20.0)
    async with NatsLink(settings, name="test") as link:
        async with asyncio.timeout(30):
            await link.wait_ready()
        yield link


def test_a_seed_is_made_for_its_owners_eyes_only(seed_file: Path, nkey: Nkey) -> None:
    assert (seed_file.stat().st_mode & 0o777, seed_file.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    settings = FleetSettings.load(nats_nkey_file=seed_file)
    assert settings.nats_nkey == nkey
    assert nkey.public_key.startswith("U")
    seed = nkey.seed.get_secret_value()
    assert seed not in f"{settings!r} {nkey!r} {settings.model_dump()}"


def test_a_seed_that_cannot_be_used_is_refused_with_a_sentence_that_does_not_show_it(
    seed_file: Path, nkey: Nkey, tmp_path: Path
) -> None:
    with pytest.raises(SettingsError, match=r"^PYOCO_NATS_NKEY_FILE: .*nowhere cannot be read \(No such file"):
        FleetSettings.load(nats_nkey_file=tmp_path / "nowhere")
    seed_file.chmod(0o644)
    with pytest.raises(SettingsError, match=r"^PYOCO_NATS_NKEY_FILE: everybody on this machine may use"):
        FleetSettings.load(nats_nkey_file=seed_file)
    seed_file.chmod(0o600)
    seed = nkey.seed.get_secret_value()
    for wrong in (seed[:-1], seed[:-1] + ("A" if seed[-1] != "A" else "B"), nkey.public_key, "SU" + "é" * 56):
        seed_file.write_text(wrong)
        with pytest.raises(SettingsError, match="does not hold the seed of a NATS user") as refusal:
            FleetSettings.load(nats_nkey_file=seed_file)
        assert wrong not in str(refusal.value)
        assert refusal.value.__cause__ is refusal.value.__context__ is None


async def test_it_gets_its_answers_below_an_inbox_of_its_own(
    guarded: NatsServer, seed_file: Path, nkey: Nkey
) -> None:
    async with connected(guarded, seed_file) as link:
        await link.jetstream.add_stream(StreamConfig(name="FINE", subjects=["fine.>"], allow_direct=True))
        assert (await link.publish("fine.a", b"1")).sequence == 1
        answer = await link.request("$JS.API.DIRECT.GET.FINE.fine.a")
        assert answer.data == b"1"
        assert answer.subject.startswith(f"_INBOX.{nkey.public_key}.")
        assert link.client.new_inbox().startswith(f"_INBOX.{nkey.public_key}.")


async def test_a_denied_publish_fails_at_once_and_names_the_subject(
    guarded: NatsServer, seed_file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with connected(guarded, seed_file) as link:
        begun = time.monotonic()
        await link.jetstream.add_stream(StreamConfig(name="FINE", subjects=["fine.>"], allow_direct=True))
        fine = [await link.publish_nowait("fine.x", b"") for _ in range(3)]
        with pytest.raises(WriteRefused, match=r"may not publish to foul\.a; see"):
            await link.publish("foul.a", b"")
        for asked in ("$JS.API.DIRECT.GET.FOUL", "$JS.API.STREAM.INFO.FOUL"):
            with pytest.raises(NatsUnavailable, match=rf"may not publish to {asked.replace('$', '.')}"):
                await link.request(asked)
        with pytest.raises(NatsUnavailable, match=r"may not publish to foul\.b"):
            await link.request_many("foul.b", b"", is_last=lambda _: True)
        with pytest.raises(NatsUnavailable, match=r"may not publish to .JS.API.STREAM.INFO.FOUL"):
            await link.stream_info("FOUL")
        with pytest.raises(nats.errors.Error, match=r"may not publish to .JS.API.STREAM.DELETE.FINE"):
            await link.jetstream.delete_stream("FINE")
        assert time.monotonic() - begun < 10, "that was a timeout"
        # Others who write at the same time do not hear of it.
        assert [(await ack).sequence for ack in fine] == [1, 2, 3]
        assert link.down_because is None
    assert 'permissions violation for publish to "foul.a"' in caplog.text


async def test_it_may_not_listen_to_anybody_else(
    guarded: NatsServer, seed_file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    heard: list[Msg] = []

    async def hear(msg: Msg) -> None:
        heard.append(msg)

    async with connected(guarded, seed_file) as link:
        for subject in (">", "_INBOX.>", "_INBOX.UANOTHER.>", "fine.>"):
            await link.client.subscribe(subject, cb=hear)
        await link.client.flush()
        await link.send("fine.a", b"")
        await link.client.flush()
        assert heard == []
    for subject in (">", "_INBOX.>", "_INBOX.UANOTHER.>", "fine.>"):
        assert f'permissions violation for subscription to "{subject.lower()}"' in caplog.text


async def test_a_user_that_the_server_does_not_know_is_logged_and_tried_again(
    guarded: NatsServer, nkey: Nkey, tmp_path: Path
) -> None:
    stranger_file = tmp_path / "stranger.nk"
    stranger = make_nkey(stranger_file)
    settings = FleetSettings.load(nats_url=guarded.url, nats_nkey_file=stranger_file)
    async with NatsLink(settings, name="test") as link:

        async def is_refused() -> bool:
            return "does not accept this process's user" in (link.down_because or "")

        await eventually(is_refused, what="the refusal being logged")
        assert "check PYOCO_NATS_NKEY_FILE" in (link.down_because or "")
        guarded.more_config = users(nkey, stranger)
        guarded.reload()
        async with asyncio.timeout(30):
            await link.wait_ready()


async def test_a_user_that_was_removed_comes_back_when_it_is_known_again(
    guarded: NatsServer, seed_file: Path, nkey: Nkey, tmp_path: Path
) -> None:
    other = make_nkey(tmp_path / "other.nk")
    async with connected(guarded, seed_file) as link:
        await link.jetstream.add_stream(StreamConfig(name="FINE", subjects=["fine.>"], allow_direct=True))
        guarded.more_config = users(other)
        guarded.reload()

        async def is_refused() -> bool:
            return "does not accept this process's user" in (link.down_because or "")

        await eventually(is_refused, what="the refusal being logged")
        with pytest.raises(NatsUnavailable):
            link.require()
        guarded.more_config = users(nkey, other)
        guarded.reload()
        async with asyncio.timeout(30):
            await link.wait_ready()
        assert (await link.publish("fine.a", b"1")).sequence == 1


async def test_a_reload_does_not_disturb_users_whose_permissions_stay(
    guarded: NatsServer, seed_file: Path, nkey: Nkey, tmp_path: Path
) -> None:
    async with connected(guarded, seed_file) as link:
        guarded.more_config = users(nkey, make_nkey(tmp_path / "other.nk"))
        guarded.reload()
        await link.client.flush()
        assert (link.reconnects, link.down_because) == (0, None)
