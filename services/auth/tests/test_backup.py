"""`pyoco-server-admin backup` and `restore`: what only NATS has, out of one server and into another."""

import io
import random
import tarfile
from collections.abc import Iterator
from pathlib import Path

import nats
import pytest
from nats.js.errors import NotFoundError

from fleet_contracts.names import WireNames, kv_stream, object_stream
from fleet_kit.nats.resources import ensure_bucket, ensure_object_store
from fleet_testkit.nats_resources import make_all
from fleet_testkit.nats_server import NatsServer

from .test_admin_cli import run

NAMES = WireNames()
WHEELS = object_stream(NAMES.wheel_object_store_bucket)
KEYS = kv_stream(NAMES.auth_kv_bucket)
# Of a kind that compression does not make small.
LARGE = random.Random(7).randbytes(5_000_000)


@pytest.fixture
def empty(tmp_path: Path) -> Iterator[NatsServer]:
    server = NatsServer(tmp_path / "empty")
    server.start()
    yield server
    server.kill()


async def fill(server: NatsServer) -> None:
    client = await nats.connect(server.url)
    js = client.jetstream()
    await make_all(js, NAMES, tags=["default"])
    await ensure_object_store(js, NAMES.wheel_object_store_bucket)
    await js.create_key_value(bucket=NAMES.wheel_history_kv_bucket, history=64)
    await ensure_bucket(js, NAMES.auth_kv_bucket)
    keys = await js.key_value(NAMES.auth_kv_bucket)
    for number in range(30):
        await keys.put(f"key{number % 20}", f"version {number}".encode())
    await keys.delete("key0")
    wheels = await js.object_store(NAMES.wheel_object_store_bucket)
    await wheels.put("large-1.0-py3-none-any.whl", LARGE)
    await js.publish(NAMES.events_subject("some-worker", "some-run"), b'{"events":[]}')
    await js.publish(NAMES.work_subject("default"), b"{}")
    await client.close()


async def content(server: NatsServer, stream: str) -> list[tuple[int | None, str | None, bytes | None]]:
    """Every message with its sequence; revisions of keys must be the same afterwards."""
    client = await nats.connect(server.url)
    try:
        js = client.jetstream()
        state = (await js.stream_info(stream)).state
        found = []
        sequence = state.first_seq
        while sequence <= state.last_seq:
            try:
                message = await js.get_msg(stream, seq=sequence)
            except NotFoundError:
                sequence += 1
                continue
            found.append((message.seq, message.subject, message.data))
            sequence += 1
        return found
    finally:
        await client.close()


async def streams_of(server: NatsServer) -> set[str | None]:
    client = await nats.connect(server.url)
    try:
        return {info.config.name for info in await client.jetstream().streams_info()}
    finally:
        await client.close()


async def test_what_was_copied_is_there_again_message_by_message(
    nats_server: NatsServer, empty: NatsServer, tmp_path: Path
) -> None:
    await fill(nats_server)
    file = tmp_path / "streams.tar"
    _, report = run("backup", "--out", str(file), "--nats-url", nats_server.url)
    assert f"copied {KEYS}: 20 messages" in report
    assert file.stat().st_mode & 0o777 == 0o600
    run("restore", "--from", str(file), "--nats-url", empty.url)
    for stream in (KEYS, WHEELS, NAMES.events_stream):
        assert await content(empty, stream) == await content(nats_server, stream)
    # What the ledger can make again is left to it.
    assert not {NAMES.work_stream, NAMES.dlq_stream, kv_stream(NAMES.runs_kv_bucket)} & await streams_of(empty)
    client = await nats.connect(empty.url)
    wheel = await (await client.jetstream().object_store(NAMES.wheel_object_store_bucket)).get(
        "large-1.0-py3-none-any.whl"
    )
    assert wheel.data == LARGE
    await client.close()


async def test_nothing_is_overwritten(nats_server: NatsServer, tmp_path: Path) -> None:
    await fill(nats_server)
    file = tmp_path / "streams.tar"
    run("backup", "--no-events", "--out", str(file), "--nats-url", nats_server.url)
    with tarfile.open(file) as archive:
        assert not any(name.startswith(NAMES.events_stream) for name in archive.getnames())
    before = await content(nats_server, KEYS)
    _, report = run("restore", "--from", str(file), "--nats-url", nats_server.url, code=1)
    assert f"NATS has {KEYS}, " in report
    assert "restore into an empty one" in report
    assert await content(nats_server, KEYS) == before
    _, report = run("backup", "--out", str(file), "--nats-url", nats_server.url, code=1)
    assert "File exists" in report


async def test_half_a_backup_is_refused_and_its_stream_does_not_appear(
    nats_server: NatsServer, empty: NatsServer, tmp_path: Path
) -> None:
    await fill(nats_server)
    whole, half = tmp_path / "whole.tar", tmp_path / "half.tar"
    run("backup", "--out", str(whole), "--nats-url", nats_server.url)
    with tarfile.open(whole) as archive:
        cut = next(member.offset_data for member in archive if member.name == f"{WHEELS}/00000002")
    half.write_bytes(whole.read_bytes()[: cut + 100])
    _, report = run("restore", "--from", str(half), "--nats-url", empty.url, code=1)
    assert "only a part of one" in report or "ends too early" in report
    assert WHEELS not in await streams_of(empty)
    half.write_bytes(b"nothing of the kind" * 100)
    run("restore", "--from", str(half), "--nats-url", empty.url, code=1)


async def test_a_missing_piece_in_the_middle_is_noticed(
    nats_server: NatsServer, empty: NatsServer, tmp_path: Path
) -> None:
    await fill(nats_server)
    whole, torn = tmp_path / "whole.tar", tmp_path / "torn.tar"
    run("backup", "--out", str(whole), "--nats-url", nats_server.url)
    with tarfile.open(whole) as archive, tarfile.open(torn, "w") as out:
        for member in archive:
            if member.name != f"{WHEELS}/00000003":
                file = archive.extractfile(member)
                assert file is not None
                out.addfile(member, io.BytesIO(file.read()))
    run("restore", "--from", str(torn), "--nats-url", empty.url, code=1)
    assert WHEELS not in await streams_of(empty)
