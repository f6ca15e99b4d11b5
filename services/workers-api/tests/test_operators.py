"""Operators hide and drain workers, and see the result."""

import asyncio
import random
import time

import httpx
import pytest
from nats.aio.msg import Msg

from fleet_contracts.control import Control, ControlKind
from fleet_contracts.names import HEADER_SCOPES
from fleet_contracts.worker_record import WorkerRecord
from fleet_kit.nats.link import NatsLink, WrongRevision
from fleet_testkit.buckets import Bucket
from fleet_testkit.nats_server import NatsServer
from fleet_testkit.waiting import eventually

from .conftest import listed, lose_nats, record, until_listed

NOT_FOUND = "ERR-PYOCO-0020"
INVALID = "ERR-PYOCO-0019"


async def stored(bucket: Bucket, worker_id: str) -> WorkerRecord:
    entry = await bucket.get(worker_id)
    assert entry is not None
    return WorkerRecord.decode(entry.value)


async def test_a_hidden_worker_leaves_the_list_at_once_and_comes_back_when_it_is_shown(
    service: httpx.AsyncClient, bucket: Bucket
) -> None:
    await bucket.put("w1", record("w1", plans="of its own"))
    await until_listed(service, "w1")
    answer = await service.patch("/workers/w1", json={"hidden": True})
    assert answer.status_code == 200
    assert answer.json() == {"worker_id": "w1", "hidden": True, "updated_at": pytest.approx(time.time(), abs=10)}
    # Without waiting: who has hidden a worker does not see it any more.
    assert await listed(service) == []
    assert await listed(service, include_hidden="true") == ["w1"]
    kept = await stored(bucket, "w1")
    assert (kept.hidden, (kept.model_extra or {})["plans"]) == (True, "of its own")
    assert (await service.patch("/workers/w1", json={"hidden": True})).json()["hidden"] is True
    assert (await service.patch("/workers/w1", json={"hidden": False})).json()["hidden"] is False
    assert await listed(service) == ["w1"]


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (b"", "body: not valid JSON: EOF while parsing a value at line 1 column 0"),
        (b"{}", "hidden: Field required"),
        (b'{"hidden": null}', "hidden: Input should be a valid boolean"),
        (b'{"hidden": "true"}', "hidden: Input should be a valid boolean"),
        (b'{"hidden": 1}', "hidden: Input should be a valid boolean"),
        (b'{"hidden": true, "draining": true}', 'body: unknown key "draining"; known: hidden'),
        (b"[true]", "body: Input should be an object"),
        (b'{"hidden": tr\xff}', "body: not valid JSON: expected ident at line 1 column 14"),
        (b"[" * 100_000, "body: not valid JSON: recursion limit exceeded at line 1 column 202"),
    ],
)
async def test_a_patch_that_is_not_exactly_a_yes_or_no_is_refused_and_changes_nothing(
    service: httpx.AsyncClient, bucket: Bucket, body: bytes, sentence: str
) -> None:
    await bucket.put("w1", record("w1"))
    await until_listed(service, "w1")
    answer = await service.patch("/workers/w1", content=body, headers={"content-type": "application/json"})
    assert (answer.status_code, answer.json()["error"]["meta"]["err_id"]) == (422, INVALID)
    assert answer.json()["detail"] == sentence
    assert await listed(service) == ["w1"]


@pytest.mark.parametrize("worker_id", ["nobody", "*", ">", "w%2A", "a.b", "w1 ", "%00", "%ff", "w" * 2000])
@pytest.mark.parametrize(("method", "path"), [("GET", ""), ("PATCH", ""), ("POST", "/drain"), ("POST", "/resume")])
async def test_a_worker_that_does_not_exist_is_not_found_whatever_it_is_called(
    service: httpx.AsyncClient, bucket: Bucket, method: str, path: str, worker_id: str
) -> None:
    await bucket.put("w1", record("w1"))
    await until_listed(service, "w1")
    body = {"hidden": True} if method == "PATCH" else None
    answer = await service.request(method, f"/workers/{worker_id}{path}", json=body)
    assert (answer.status_code, answer.json()["error"]["meta"]["err_id"]) == (404, NOT_FOUND)
    assert answer.json()["error"]["meta"]["msg_id"] == "MSG-PYOCO-0020"
    assert not (await stored(bucket, "w1")).hidden


async def test_heartbeats_and_operators_racing_for_the_record_lose_nothing(
    service: httpx.AsyncClient, bucket: Bucket
) -> None:
    """A worker writes in bursts, by compare-and-set; each side must find all that the other has written."""
    await bucket.put("w1", record("w1"))
    await until_listed(service, "w1")
    beats, refused = 0, 0
    seen: list[bool] = []
    done = asyncio.Event()

    async def beat() -> None:
        nonlocal beats, refused
        while not done.is_set():
            entry = await bucket.get("w1")
            assert entry is not None
            mine = WorkerRecord.decode(entry.value)
            assert (mine.last_run_id or "0") == str(beats), "a heartbeat was lost"
            seen.append(mine.hidden)
            changed = mine.model_copy(update={"last_run_id": str(beats + 1), "last_seen_at": time.time()})
            try:
                await bucket.update("w1", changed.encode(), revision=entry.revision)
            except WrongRevision:
                refused += 1
                continue
            beats += 1
            # One that never pauses would win every race against a service that the machine has no time for.
            await asyncio.sleep(random.choice((0, 0, 0, 0.03)))

    beating = asyncio.create_task(beat())
    for round_ in range(2000):
        if round_ >= 100 and beats > 20 and refused:
            break
        hidden = round_ % 2 == 0
        answer = await service.patch("/workers/w1", json={"hidden": hidden})
        assert answer.status_code == 200, answer.text
        assert (await stored(bucket, "w1")).hidden is hidden, "what an operator said was lost"
    done.set()
    await beating
    assert beats > 20
    assert refused > 0, "the two never met: the test has shown nothing"
    assert {True, False} <= set(seen)
    assert (await stored(bucket, "w1")).last_run_id == str(beats)


async def test_draining_is_written_down_and_the_worker_gets_a_hint(
    service: httpx.AsyncClient, bucket: Bucket, worker_link: NatsLink
) -> None:
    hints: list[Control] = []

    async def hear(msg: Msg) -> None:
        hints.append(Control.decode(msg.data))

    await worker_link.client.subscribe("pyoco.control.w1", cb=hear)
    await bucket.put("w1", record("w1", state="RUNNING", current_run_ids=["r1"]))
    await until_listed(service, "w1")
    answer = await service.post("/workers/w1/drain")
    assert answer.status_code == 200
    assert (answer.json()["worker_id"], answer.json()["draining"], answer.json()["state"]) == ("w1", True, "RUNNING")
    [shown] = (await service.get("/workers")).json()
    assert shown == answer.json()
    assert (await stored(bucket, "w1")).draining
    await eventually(lambda: [control.kind for control in hints] == [ControlKind.RECORD], what="the hint")
    again = await service.post("/workers/w1/drain")
    assert (again.status_code, again.json()["draining"]) == (200, True)
    resumed = await service.post("/workers/w1/resume")
    assert (resumed.status_code, resumed.json()["draining"]) == (200, False)
    assert not (await stored(bucket, "w1")).draining
    await eventually(lambda: len(hints) == 3, what="a hint each time")


@pytest.mark.parametrize(
    ("fields", "state"),
    [
        ({"state": "STOPPED_GRACEFUL", "stopped_at": 5.0}, "STOPPED_GRACEFUL"),
        ({"state": "RUNNING", "last_seen_at": time.time() - 3600}, "DISCONNECTED"),
    ],
)
async def test_a_worker_that_is_gone_can_be_marked_for_the_time_when_it_comes_back(
    service: httpx.AsyncClient, bucket: Bucket, fields: dict[str, object], state: str
) -> None:
    await bucket.put("w1", record("w1", **fields))
    await until_listed(service, "w1")
    answer = await service.post("/workers/w1/drain")
    assert (answer.status_code, answer.json()["state"], answer.json()["draining"]) == (200, state, True)


async def test_a_worker_of_the_seed_spec_has_one_slot_which_its_run_occupies(
    service: httpx.AsyncClient, bucket: Bucket
) -> None:
    await bucket.put("w1", record("w1", state="RUNNING", current_run_id="r1"))
    await until_listed(service, "w1")
    worker = (await service.get("/workers/w1")).json()
    assert (worker["slots"], worker["busy_slots"], worker["current_run_ids"]) == (1, 1, ["r1"])


async def test_one_worker_is_shown_with_everything_that_is_known_of_it(
    service: httpx.AsyncClient, bucket: Bucket
) -> None:
    machine = {"host": "box", "pid": 7, "python_version": "3.12.1", "pyoco_version": "0.8", "fleet_version": "0.1"}
    machine |= {"cpu_count": 4, "cpu_percent": 150.5, "memory_bytes": 1000, "memory_total_bytes": 8000}
    fields = {
        "state": "RUNNING",
        "slots": 4,
        "current_run_id": "r2",
        "current_run_ids": ["r1", "r2"],
        "machine": machine,
        "flows": ["a", "b"],
        "started_at": 5.0,
        "wheel_sync": {"enabled": True, "last_result": "ok", "installed_wheels": [{"name": "x.whl", "nuid": "n"}]},
    }
    await bucket.put("w1", record("w1", **fields))
    await until_listed(service, "w1")
    worker = (await service.get("/workers/w1")).json()
    [summary] = (await service.get("/workers")).json()
    assert summary.items() <= worker.items()
    assert worker.keys() - summary.keys() == {"busy_slots", "started_at", "flows", "machine"}
    assert (worker["slots"], worker["busy_slots"], worker["current_run_ids"]) == (4, 2, ["r1", "r2"])
    assert machine.items() <= worker["machine"].items()
    assert (worker["flows"], worker["started_at"]) == (["a", "b"], 5.0)
    assert worker["wheel_sync"]["installed_wheels"][0]["name"] == "x.whl"
    # More in hand than slots: the rest was claimed ahead.
    await bucket.put("w1", record("w1", **fields | {"slots": 1}))
    await eventually(lambda: is_busy(service, 1), what="one busy slot")
    await bucket.put("w1", record("w1", **fields | {"last_seen_at": time.time() - 60}))
    await eventually(lambda: is_busy(service, 0), what="no busy slot of a worker that is gone")


async def is_busy(service: httpx.AsyncClient, slots: int) -> bool:
    return bool((await service.get("/workers/w1")).json()["busy_slots"] == slots)


@pytest.mark.parametrize(
    ("method", "path", "scope"),
    [
        ("GET", "/workers", "workers:read"),
        ("GET", "/workers/events", "workers:read"),
        ("GET", "/workers/w1", "workers:read"),
        ("PATCH", "/workers/w1", "workers:write"),
        ("POST", "/workers/w1/drain", "workers:write"),
        ("POST", "/workers/w1/resume", "workers:write"),
    ],
)
async def test_every_route_asks_for_its_scope(service: httpx.AsyncClient, method: str, path: str, scope: str) -> None:
    others = "runs:read runs:write wheels:write metrics:read"
    others += " workers:read" if scope == "workers:write" else " workers:write"
    answer = await service.request(method, path, headers={HEADER_SCOPES: others}, json={"hidden": True})
    assert (answer.status_code, answer.json()["error"]["meta"]["missing_scope"]) == (403, scope)


@pytest.mark.own_nats
async def test_while_nats_is_away_changes_are_refused(
    service: httpx.AsyncClient, bucket: Bucket, nats_server: NatsServer
) -> None:
    await lose_nats(service, bucket, nats_server)
    assert (await service.get("/workers/w1")).status_code == 503
    for method, path in (("PATCH", "w1"), ("POST", "w1/drain"), ("POST", "w1/resume"), ("GET", "events")):
        answer = await service.request(method, f"/workers/{path}", json={"hidden": True})
        assert (answer.status_code, answer.json()["error"]["meta"]["err_id"]) == (503, "ERR-PYOCO-0003")
