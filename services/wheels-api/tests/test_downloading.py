"""Downloading a wheel: whole, in parts, only if it has changed, and never half of it that looks like the whole."""

import hashlib
import os
from pathlib import Path

import httpx
import nats
import pytest

from fleet_testkit.apps import ANONYMOUS, ServiceProcess
from fleet_testkit.nats_server import NatsServer
from fleet_testkit.wheels import build_wheel, upload_of

CHUNK = 128 * 1024


@pytest.fixture
async def wheel(service: httpx.AsyncClient, tmp_path: Path) -> bytes:
    """A registered wheel of several chunks: its bytes."""
    path = build_wheel(tmp_path, "shop", members={"shop/data.bin": os.urandom(2 * CHUNK)})
    (await service.post("/wheels", files=upload_of(path))).raise_for_status()
    return path.read_bytes()


PATH = "/wheels/shop-1.0-py3-none-any.whl"


async def test_a_wheel_is_downloaded_as_a_file(service: httpx.AsyncClient, wheel: bytes) -> None:
    answer = await service.get(PATH)
    assert answer.status_code == 200
    assert answer.content == wheel
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.headers["content-disposition"] == 'attachment; filename="shop-1.0-py3-none-any.whl"'
    assert answer.headers["content-length"] == str(len(wheel))
    assert answer.headers["etag"] == f'"{hashlib.sha256(wheel).hexdigest()}"'
    assert answer.headers["accept-ranges"] == "bytes"


async def test_a_head_request_has_the_same_headers_and_no_body(service: httpx.AsyncClient, wheel: bytes) -> None:
    whole, head = await service.get(PATH), await service.head(PATH)
    own = {"x-request-id"}
    assert {k: v for k, v in head.headers.items() if k not in own} == {
        k: v for k, v in whole.headers.items() if k not in own
    }
    assert (head.status_code, head.content) == (200, b"")
    for wanted in ("bytes=0-0", f"bytes={len(wheel)}-"):
        ranged = await service.head(PATH, headers={"range": wanted})
        assert (ranged.status_code, ranged.headers["content-length"]) == (200, str(len(wheel)))


async def test_a_wheel_that_the_caller_has_is_not_sent_again(service: httpx.AsyncClient, wheel: bytes) -> None:
    etag = (await service.head(PATH)).headers["etag"]
    for given in (etag, f"W/{etag}", f'"other", {etag}', "*"):
        answer = await service.get(PATH, headers={"if-none-match": given})
        assert (answer.status_code, answer.content, answer.headers["etag"]) == (304, b"", etag)
    assert (await service.get(PATH, headers={"if-none-match": '"other"'})).status_code == 200


@pytest.mark.parametrize(
    ("wanted", "start", "stop"),
    [
        ("bytes=0-0", 0, 1),
        ("bytes=10-99", 10, 100),
        (f"bytes={CHUNK - 5}-{CHUNK + 4}", CHUNK - 5, CHUNK + 5),
        (f"bytes={CHUNK}-", CHUNK, None),
        ("bytes=-100", -100, None),
        ("bytes=-99999999", 0, None),
        ("bytes=5-99999999999", 5, None),
        ("Bytes=7-8", 7, 9),
    ],
)
async def test_a_part_of_a_wheel_can_be_asked_for(
    service: httpx.AsyncClient, wheel: bytes, wanted: str, start: int, stop: int | None
) -> None:
    answer = await service.get(PATH, headers={"range": wanted})
    part = wheel[start:stop]
    assert (answer.status_code, answer.content) == (206, part)
    first = wheel.index(part) if start < 0 else start
    assert answer.headers["content-range"] == f"bytes {first}-{first + len(part) - 1}/{len(wheel)}"
    assert answer.headers["content-length"] == str(len(part))


async def test_a_part_that_does_not_exist_is_refused(service: httpx.AsyncClient, wheel: bytes) -> None:
    for wanted in (f"bytes={len(wheel)}-", f"bytes={len(wheel) + 5}-{len(wheel) + 9}", "bytes=-0"):
        answer = await service.get(PATH, headers={"range": wanted})
        assert answer.status_code == 416
        assert answer.headers["content-range"] == f"bytes */{len(wheel)}"
        assert answer.json()["ok"] is False


@pytest.mark.parametrize(
    "wanted", ["bytes=1-0", "bytes=-", "bytes=a-b", "lines=1-2", "bytes=0-1,5-6", "bytes=" + "9" * 100 + "-", "bytes"]
)
async def test_a_range_that_is_not_understood_is_answered_with_the_whole(
    service: httpx.AsyncClient, wheel: bytes, wanted: str
) -> None:
    answer = await service.get(PATH, headers={"range": wanted})
    assert (answer.status_code, len(answer.content)) == (200, len(wheel))


async def test_a_part_of_another_wheel_than_the_caller_began_with_is_the_whole(
    service: httpx.AsyncClient, wheel: bytes
) -> None:
    etag = (await service.head(PATH)).headers["etag"]
    same = await service.get(PATH, headers={"range": "bytes=5-", "if-range": etag})
    assert (same.status_code, same.content) == (206, wheel[5:])
    other = await service.get(PATH, headers={"range": "bytes=5-", "if-range": '"other"'})
    assert (other.status_code, other.content) == (200, wheel)


@pytest.mark.parametrize("how", ["vanished", "damaged"])
async def test_a_wheel_that_is_damaged_or_vanishes_meanwhile_does_not_look_complete(
    nats_server: NatsServer, tmp_path: Path, how: str
) -> None:
    path = build_wheel(tmp_path, "shop", members={"shop/data.bin": os.urandom(80 * CHUNK)})
    async with ServiceProcess("fleet_wheels_api", tmp_path, PYOCO_NATS_URL=nats_server.url).serving() as service:
        service.headers.update(ANONYMOUS)
        uploaded = (await service.post("/wheels", files=upload_of(path))).json()
        peer = await nats.connect(nats_server.url)
        chunks = f"$O.pyoco_wheels.C.{uploaded['nuid']}"
        try:
            if how == "damaged":
                await peer.jetstream().publish(chunks, b"a chunk too many")
            received = b""
            with pytest.raises(httpx.RemoteProtocolError):  # noqa: PT012
                async with service.stream("GET", f"/wheels/{path.name}") as answer:
                    assert answer.status_code == 200
                    async for piece in answer.aiter_raw():
                        received += piece
                        if how == "vanished" and len(received) < 1000_000:
                            await peer.jetstream().purge_stream("OBJ_pyoco_wheels", subject=chunks)
        finally:
            await peer.close()
        assert len(received) < uploaded["size_bytes"]
        # The service is well, and says at once what it knows from the start.
        if how == "vanished":
            assert (await service.get(f"/wheels/{path.name}")).status_code == 503
