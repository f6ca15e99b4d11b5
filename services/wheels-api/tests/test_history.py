"""The history of the registry: every upload and delete, who did it and from where, page by page."""

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import nats
import pytest

from fleet_contracts.wheel import WheelAction, WheelEvent
from fleet_kit.nats.link import NatsLink
from fleet_kit.settings import FleetSettings
from fleet_testkit.apps import ANONYMOUS, running, until_ready
from fleet_testkit.nats_server import NatsServer
from fleet_testkit.waiting import eventually
from fleet_testkit.wheels import build_wheel, upload_of
from fleet_wheels_api.history import History
from fleet_wheels_api.main import build
from fleet_wheels_api.settings import Settings

NAME = "shop-1.0-py3-none-any.whl"


async def test_an_upload_and_a_delete_are_recorded_with_who_and_from_where(
    service: httpx.AsyncClient, tmp_path: Path
) -> None:
    told_by_the_gateway = {
        "X-Pyoco-Tenant-Id": "acme",
        "X-Pyoco-Api-Key-Id": "key-1",
        "X-Real-IP": "203.0.113.7",
        "X-Forwarded-For": "198.51.100.1, 203.0.113.7",
        "X-Forwarded-Proto": "https",
        "User-Agent": "curl/8 " + "x" * 1000,
        "Host": "fleet.example",
    }
    begun = time.time()
    wheel = (
        await service.post(
            "/wheels",
            files=upload_of(build_wheel(tmp_path, "shop")),
            data={"tags": "cpu", "replace": "false"},
            headers=told_by_the_gateway,
        )
    ).json()
    (await service.delete(f"/wheels/{NAME}")).raise_for_status()
    deleted, uploaded = (await service.get("/wheels/history")).json()
    assert begun <= uploaded.pop("occurred_at") <= deleted.pop("occurred_at") <= time.time()
    assert uploaded.pop("event_id") < deleted.pop("event_id")
    assert uploaded == {
        "action": "upload",
        "wheel_name": NAME,
        "tags": ["cpu"],
        "size_bytes": wheel["size_bytes"],
        "sha256_hex": wheel["sha256_hex"],
        "replace": False,
        "actor": {"tenant_id": "acme", "api_key_id": "key-1"},
        "source": {
            "remote_addr": "203.0.113.7",
            "x_forwarded_for": "198.51.100.1, 203.0.113.7",
            "x_real_ip": "203.0.113.7",
            "user_agent": ("curl/8 " + "x" * 1000)[:256],
            "host": "fleet.example",
            "scheme": "https",
        },
    }
    assert (deleted["action"], deleted["wheel_name"], deleted["replace"]) == ("delete", NAME, None)
    assert (deleted["tags"], deleted["size_bytes"], deleted["sha256_hex"]) == (
        ["cpu"],
        wheel["size_bytes"],
        wheel["sha256_hex"],
    )
    assert deleted["actor"] == {"tenant_id": "anonymous", "api_key_id": None}


async def put_events(nats_server: NatsServer, count: int) -> list[str]:
    """As many events, every third a delete; their ids, the latest first."""
    client = await nats.connect(nats_server.url)
    try:
        js = client.jetstream()
        for number in range(count):
            event = WheelEvent(
                event_id=f"event-{number:05}",
                occurred_at=float(number),
                action=WheelAction.DELETE if number % 3 == 0 else WheelAction.UPLOAD,
                wheel_name=f"shop-{number % 7}-py3-none-any.whl",
            )
            await js.publish(f"$KV.pyoco_wheel_history.{event.event_id}", event.encode())
    finally:
        await client.close()
    return [f"event-{number:05}" for number in reversed(range(count))]


async def walk(service: httpx.AsyncClient, **query: str | int) -> list[list[str]]:
    """Every page, by following the cursor."""
    pages: list[list[str]] = []
    cursor: dict[str, str] = {}
    while True:
        answer = await service.get("/wheels/history", params={**query, **cursor})
        assert answer.status_code == 200, answer.text
        pages.append([event["event_id"] for event in answer.json()])
        if (following := answer.headers.get("x-next-cursor")) is None:
            return pages
        cursor = {"cursor": following}


def flat(pages: list[list[str]]) -> list[str]:
    return [event_id for page in pages for event_id in page]


async def test_the_history_is_walked_page_by_page(service: httpx.AsyncClient, nats_server: NatsServer) -> None:
    ids = await put_events(nats_server, 1250)
    assert [event["event_id"] for event in (await service.get("/wheels/history")).json()] == ids[:100]
    pages = await walk(service, limit=500)
    assert [len(page) for page in pages] == [500, 500, 250]
    assert flat(pages) == ids
    deletes = await walk(service, limit=100, action="delete")
    assert flat(deletes) == [i for i in ids if int(i[-5:]) % 3 == 0]
    of_one = await walk(service, limit=7, wheel_name="shop-4-py3-none-any.whl", action="upload")
    assert flat(of_one) == [i for i in ids if int(i[-5:]) % 7 == 4 and int(i[-5:]) % 3]
    assert all(len(page) == 7 for page in of_one[:-1])
    assert await walk(service, limit=7, wheel_name="never-1-py3-none-any.whl") == [[]]


async def test_a_page_does_not_cost_the_whole_history(service: httpx.AsyncClient, nats_server: NatsServer) -> None:
    await put_events(nats_server, 3000)
    async with NatsLink(FleetSettings(nats_url=nats_server.url), name="test") as link:
        await link.wait_ready()
        before = link.client.stats["in_bytes"]
        page = await History(link, "pyoco_wheel_history").page(limit=10)
        assert len(page.events) == 10
        assert link.client.stats["in_bytes"] - before < 20_000


async def test_entries_that_were_removed_or_are_not_readable_are_passed_over(
    service: httpx.AsyncClient, nats_server: NatsServer
) -> None:
    ids = await put_events(nats_server, 30)
    client = await nats.connect(nats_server.url)
    try:
        js = client.jetstream()
        await js.purge_stream("KV_pyoco_wheel_history", subject="$KV.pyoco_wheel_history.event-00017")
        await js.publish("$KV.pyoco_wheel_history.nonsense", b"nonsense")
        await js.purge_stream("KV_pyoco_wheel_history", seq=6)
    finally:
        await client.close()
    assert flat(await walk(service, limit=4)) == [i for i in ids[:25] if i != "event-00017"]


@pytest.mark.parametrize(
    "query",
    [
        {"limit": "0"},
        {"limit": "501"},
        {"limit": "many"},
        {"limit": "9" * 400},
        {"action": "rename"},
        {"wheel_name": "../x.whl"},
        {"wheel_name": "x" * 300 + ".whl"},
        {"cursor": "nonsense"},
        {"cursor": "-1"},
        {"cursor": "9" * 30},
    ],
)
async def test_a_query_that_makes_no_sense_is_refused(service: httpx.AsyncClient, query: dict[str, str]) -> None:
    answer = await service.get("/wheels/history", params=query)
    assert answer.status_code == 422
    assert answer.json()["error"]["meta"]["err_id"] == "ERR-PYOCO-0002"


async def test_what_could_not_be_written_down_at_once_is_written_down_later(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    """The registry takes the wheels while the history takes nothing."""
    settings = Settings(nats_url=nats_server.url, wheel_sweep_interval_sec=0.2)
    peer = await nats.connect(nats_server.url)
    js = peer.jetstream()
    async with running(build(settings)) as service:
        service.headers.update(ANONYMOUS)
        await until_ready(service)
        config = (await js.stream_info("KV_pyoco_wheel_history")).config
        await js.update_stream(config.evolve(max_msg_size=16))
        for version in ("1.0", "2.0"):
            wheel = build_wheel(tmp_path, "shop", version)
            assert (await service.post("/wheels", files=upload_of(wheel))).status_code == 200
        await js.update_stream(config.evolve(max_msg_size=-1))

        async def both_are_recorded() -> bool:
            events = (await service.get("/wheels/history")).json()
            return sorted(event["wheel_name"].split("-")[1] for event in events) == ["1.0", "2.0"]

        await eventually(both_are_recorded, what="both uploads in the history")
    # Another process finds them written down and does not write them twice.
    async with running(build(settings)) as service:
        service.headers.update(ANONYMOUS)
        await until_ready(service)
        (await service.post("/wheels", files=upload_of(build_wheel(tmp_path, "other")))).raise_for_status()
        (await service.delete("/wheels/shop-1.0-py3-none-any.whl")).raise_for_status()
        actions = [
            (e["action"], e["wheel_name"].split("-")[0]) for e in (await service.get("/wheels/history")).json()
        ]
        assert actions == [("delete", "shop"), ("upload", "other"), ("upload", "shop"), ("upload", "shop")]
    await peer.close()


@asynccontextmanager
async def refusing_history(
    nats_server: NatsServer,
) -> AsyncIterator[tuple[httpx.AsyncClient, Callable[[bool], Awaitable[None]]]]:
    """A service without sweeps, and a switch that makes the history take nothing."""
    settings = Settings(nats_url=nats_server.url, wheel_sweep_interval_sec=3600)
    peer = await nats.connect(nats_server.url)
    js = peer.jetstream()

    async def refuse(wanted: bool) -> None:
        config = (await js.stream_info("KV_pyoco_wheel_history")).config
        await js.update_stream(config.evolve(max_msg_size=16 if wanted else -1))

    async with running(build(settings)) as service:
        service.headers.update(ANONYMOUS)
        await until_ready(service)
        yield service, refuse
    await peer.close()


async def test_an_upload_that_the_history_lacks_is_recorded_before_its_wheel_is_deleted(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    async with refusing_history(nats_server) as (service, refuse):
        await refuse(True)
        wheel = build_wheel(tmp_path, "shop")
        assert (await service.post("/wheels", files=upload_of(wheel))).status_code == 200
        assert (await service.get("/wheels/history")).json() == []
        # While the history takes nothing the delete is refused, and nothing is lost.
        assert (await service.delete(f"/wheels/{NAME}")).status_code == 503
        assert len((await service.get("/wheels")).json()) == 1
        await refuse(False)
        assert (await service.delete(f"/wheels/{NAME}")).status_code == 200
        assert [e["action"] for e in (await service.get("/wheels/history")).json()] == ["delete", "upload"]


async def test_a_delete_that_the_history_lacks_is_recorded_before_its_name_comes_back(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    async with refusing_history(nats_server) as (service, refuse):
        wheel = build_wheel(tmp_path, "shop")
        assert (await service.post("/wheels", files=upload_of(wheel))).status_code == 200
        await refuse(True)
        assert (await service.delete(f"/wheels/{NAME}")).status_code == 200
        # While the history takes nothing the name does not come back, and nothing is lost.
        assert (await service.post("/wheels", files=upload_of(wheel))).status_code == 503
        assert (await service.get("/wheels")).json() == []
        await refuse(False)
        assert (await service.post("/wheels", files=upload_of(wheel))).status_code == 200
        actions = [e["action"] for e in (await service.get("/wheels/history")).json()]
        assert actions == ["upload", "delete", "upload"]
