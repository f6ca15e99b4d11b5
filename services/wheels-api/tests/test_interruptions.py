"""An interrupted upload leaves the registry unchanged and no bytes behind."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import httpx
import nats
import pytest
from nats.js import JetStreamContext

from fleet_contracts.wheel import WheelActor, WheelSource
from fleet_kit.errors import NatsUnavailable
from fleet_kit.nats.link import NatsLink
from fleet_testkit.apps import ANONYMOUS, ServiceProcess, running, until_ready
from fleet_testkit.nats_links import PausesBeforeNaming
from fleet_testkit.nats_server import NatsServer
from fleet_testkit.waiting import eventually
from fleet_testkit.wheels import build_wheel, upload_of
from fleet_wheels_api.history import History
from fleet_wheels_api.main import build, make_stores
from fleet_wheels_api.names import parse_name
from fleet_wheels_api.registry import Registry
from fleet_wheels_api.settings import Settings
from fleet_wheels_api.upload import Upload

QUICK = {"PYOCO_NATS_REQUEST_TIMEOUT_SEC": "1", "PYOCO_WHEEL_SWEEP_INTERVAL_SEC": "0.3"}


class Place:
    """A wheels-api process, its NATS, and a look at what lies around."""

    def __init__(self, nats_server: NatsServer, folder: Path, **settings: str) -> None:
        self.nats_server = nats_server
        self.uploads = folder / "uploads"
        self.uploads.mkdir()
        self.process = ServiceProcess(
            "fleet_wheels_api",
            folder,
            PYOCO_NATS_URL=nats_server.url,
            PYOCO_WHEEL_UPLOAD_DIR=str(self.uploads),
            **QUICK,
            **settings,
        )

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[httpx.AsyncClient]:
        async with self.process.serving() as client:
            client.headers.update(ANONYMOUS)
            client.timeout = httpx.Timeout(30)
            yield client

    @asynccontextmanager
    async def jetstream(self) -> AsyncIterator[JetStreamContext]:
        client = await nats.connect(self.nats_server.url)
        try:
            yield client.jetstream(timeout=5)
        finally:
            await client.close()

    def open_files(self) -> int:
        """Temporary files of uploads, named on disk or not."""
        named = len(list(self.uploads.iterdir()))
        handles = Path(f"/proc/{self.process.pid}/fd")
        return named + sum(
            str(self.uploads) in os.readlink(handle) for handle in handles.iterdir() if handle.is_symlink()
        )

    async def messages(self) -> dict[str, int]:
        """How many messages each stream holds; chunks and metas of wheels apart."""
        async with self.jetstream() as js:
            wheels = (await js.stream_info("OBJ_pyoco_wheels", subjects_filter=">")).state.subjects or {}
            history = (await js.stream_info("KV_pyoco_wheel_history")).state.messages
        return {
            "chunks": sum(count for subject, count in wheels.items() if ".C." in subject),
            "metas": sum(count for subject, count in wheels.items() if ".M." in subject),
            "history": history,
        }

    async def is_untouched(self) -> bool:
        return self.open_files() == 0 and await self.messages() == {"chunks": 0, "metas": 0, "history": 0}

    async def stored_chunks(self, least: int) -> bool:
        return (await self.messages())["chunks"] >= least


@pytest.fixture
def place(nats_server: NatsServer, tmp_path: Path) -> Place:
    return Place(nats_server, tmp_path)


@pytest.fixture
def large_wheel(tmp_path: Path) -> Path:
    """Storing it takes long enough to step in between."""
    return build_wheel(tmp_path, "shop", members={"shop/data.bin": os.urandom(96 * 1024 * 1024)})


async def begin_upload(place: Place, sent: int) -> asyncio.StreamWriter:
    """Send the beginning of an upload that announces more."""
    _, writer = await asyncio.open_unix_connection(str(place.process.socket))
    headers = [
        "POST /wheels HTTP/1.1",
        "Host: service",
        *(f"{name}: {value}" for name, value in ANONYMOUS.items()),
        "Content-Type: multipart/form-data; boundary=b",
        "Content-Length: 100000000",
    ]
    part = '--b\r\nContent-Disposition: form-data; name="wheel"; filename="shop-1.0-py3-none-any.whl"\r\n\r\n'
    writer.write(("\r\n".join(headers) + "\r\n\r\n" + part).encode() + b"x" * sent)
    await writer.drain()
    return writer


async def test_a_client_that_goes_away_leaves_nothing_behind(place: Place, tmp_path: Path) -> None:
    async with place.serving() as service:
        writer = await begin_upload(place, 5_000_000)
        await eventually(lambda: place.open_files() == 1, what="the temporary file")
        assert list(place.uploads.iterdir()) == []  # it has no name, so not even a crash can leave it
        writer.close()
        await eventually(place.is_untouched, what="nothing left")
        answer = await service.post("/wheels", files=upload_of(build_wheel(tmp_path, "shop")))
        assert answer.status_code == 200


async def test_a_killed_process_leaves_no_file_behind(place: Place) -> None:
    place.process.start()
    try:
        async with place.process.client() as client:
            await until_ready(client, within=30)
        writer = await begin_upload(place, 5_000_000)
        await eventually(lambda: place.open_files() == 1, what="the temporary file")
    finally:
        place.process.kill()
    writer.close()
    assert list(place.uploads.iterdir()) == []


@pytest.mark.own_nats
@pytest.mark.parametrize("how", ["paused", "killed"])
async def test_nats_that_goes_away_while_a_wheel_is_stored_means_503_and_an_unchanged_registry(
    place: Place, large_wheel: Path, how: str
) -> None:
    async with place.serving() as service:
        uploading = asyncio.create_task(service.post("/wheels", files=upload_of(large_wheel)))
        await eventually(lambda: place.stored_chunks(20), what="the first chunks")
        if how == "paused":
            place.nats_server.pause()
        else:
            place.nats_server.kill()
        answer = await uploading
        assert answer.status_code == 503, answer.text
        assert answer.json()["error"]["meta"]["err_id"] == "ERR-PYOCO-0003"
        assert place.open_files() == 0
        assert (await service.get("/wheels")).status_code == 503
        if how == "paused":
            place.nats_server.resume()
        else:
            place.nats_server.start()
        await until_ready(service, within=30)
        await eventually(place.is_untouched, within=30, what="nothing left")
        assert (await service.get("/wheels")).json() == []
        # And the same wheel can be uploaded now.
        assert (await service.post("/wheels", files=upload_of(large_wheel))).status_code == 200


async def test_what_a_killed_process_has_stored_of_a_wheel_is_removed_by_the_next(
    nats_server: NatsServer, tmp_path: Path, large_wheel: Path
) -> None:
    place = Place(nats_server, tmp_path, PYOCO_WHEEL_ORPHAN_SEC="1")
    place.process.start()
    async with place.process.client() as client:
        client.headers.update(ANONYMOUS)
        await until_ready(client, within=30)
        uploading = asyncio.create_task(client.post("/wheels", files=upload_of(large_wheel)))
        await eventually(lambda: place.stored_chunks(20), what="the first chunks")
        place.process.kill()
        with pytest.raises(httpx.TransportError):
            await uploading
    assert (await place.messages())["chunks"] >= 20
    async with place.serving() as service:
        await eventually(place.is_untouched, within=20, what="nothing left")
        metrics = (await service.get("/metrics")).text
        assert "pyoco_wheel_orphans_swept_total 1.0" in metrics


@pytest.mark.own_nats
async def test_without_nats_an_upload_is_refused_before_it_is_read(
    service: httpx.AsyncClient, nats_server: NatsServer
) -> None:
    nats_server.kill()

    async def is_waiting() -> bool:
        return (await service.get("/ready")).status_code == 503

    await eventually(is_waiting)
    read = False

    async def body() -> AsyncIterator[bytes]:
        nonlocal read
        read = True
        yield b"x"

    refused = await service.post(
        "/wheels", content=body(), headers={"content-type": "multipart/form-data; boundary=b"}
    )
    for answer in (
        refused,
        await service.get("/wheels"),
        await service.get("/wheels/history"),
        await service.get("/wheels/shop-1.0-py3-none-any.whl"),
        await service.delete("/wheels/shop-1.0-py3-none-any.whl"),
    ):
        assert answer.status_code == 503
        assert answer.json()["error"]["meta"]["err_id"] == "ERR-PYOCO-0003"
        assert answer.json()["error"]["meta"]["retryable"] is True
    assert not read


async def test_a_store_that_takes_no_more_means_503_and_an_unchanged_registry(
    service: httpx.AsyncClient, nats_server: NatsServer, tmp_path: Path
) -> None:
    peer = await nats.connect(nats_server.url)
    try:
        js = peer.jetstream()
        config = (await js.stream_info("OBJ_pyoco_wheels")).config
        await js.update_stream(config.evolve(max_bytes=200_000))
        wheel = build_wheel(tmp_path, "shop", members={"shop/data.bin": os.urandom(250_000)})
        answer = await service.post("/wheels", files=upload_of(wheel))
        assert answer.status_code == 503
        assert answer.json()["error"]["meta"]["err_id"] == "ERR-PYOCO-0003"
        assert (await js.stream_info("OBJ_pyoco_wheels")).state.messages == 0
        assert (await service.get("/wheels")).json() == []
        await js.update_stream(config.evolve(max_bytes=-1))
        assert (await service.post("/wheels", files=upload_of(wheel))).status_code == 200
    finally:
        await peer.close()


async def test_a_folder_for_uploads_that_cannot_be_used_is_reported_with_its_reason(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    settings = Settings(nats_url=nats_server.url, wheel_upload_dir=tmp_path / "nowhere")
    async with running(build(settings)) as service:
        service.headers.update(ANONYMOUS)
        await until_ready(service)
        answer = await service.post("/wheels", files=upload_of(build_wheel(tmp_path, "shop")))
        assert answer.status_code == 503
        assert "No such file or directory" in answer.json()["detail"]


@pytest.mark.own_nats
async def test_a_wheel_whose_upload_was_answered_as_failed_and_arrived_all_the_same_is_taken_back(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    """The server is paused just before the wheel gets its name, and takes the message when it goes on."""
    settings = Settings(nats_url=nats_server.url, nats_request_timeout_sec=1.0)
    link = NatsLink(settings, name="test")
    link.after_connect(partial(make_stores, link, settings))
    store = PausesBeforeNaming(link, "pyoco_wheels", nats_server)
    history = History(link, "pyoco_wheel_history")
    registry = Registry(store, history, history_ttl_sec=3600, most_unpacked_bytes=10**9)
    path = build_wheel(tmp_path, "shop")
    async with link:
        await link.wait_ready()
        with path.open("rb") as file:
            upload = Upload(parse_name(path.name), file, ["cpu"], replace=True)
            try:
                with pytest.raises(NatsUnavailable):
                    await registry.register(upload, WheelActor(tenant_id="acme"), WheelSource())
            finally:
                store.resume()

        async def names() -> list[str]:
            try:
                return [stored.name for stored in await registry.wheels()]
            except NatsUnavailable:
                return []

        assert await eventually(names, within=20) == [path.name]
        assert store.has_leftovers
        await registry.reconcile()
        assert await names() == []
        events = (await history.page(limit=10)).events
        assert [(event.action, event.actor.tenant_id, event.tags) for event in events] == [
            ("delete", "acme", ["cpu"]),
            ("upload", "acme", ["cpu"]),
        ]
