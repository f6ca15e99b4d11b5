"""Cancelling: recorded once, sent to the holder, and never two ends."""

import asyncio
import time
from pathlib import Path

import pytest
from sqlalchemy import text

from fleet_contracts.control import Control, ControlKind
from fleet_contracts.names import HEADER_TENANT_ID
from fleet_contracts.snapshot import RunSnapshot
from fleet_contracts.status import RunStatus
from fleet_kit.nats.link import WrongRevision
from fleet_runs_api.accept import cancel_requests
from fleet_runs_api.accept.cancel_requests import CancelRequest
from fleet_testkit.nats_server import NatsServer
from fleet_testkit.waiting import eventually

from .conftest import RunsUnderTest, runs_running, runs_settings, writing


async def finish(service: RunsUnderTest, run_id: str, status: RunStatus) -> None:
    """End a run as its holder would: again and again until nobody has written in between."""
    while True:
        entry = await service.runs.get(run_id)
        assert entry is not None
        snapshot = RunSnapshot.decode(entry.value)
        if snapshot.is_terminal:
            return
        try:
            await service.runs.update(
                run_id, snapshot.finish(status, now=time.time()).encode(), revision=entry.revision
            )
            return
        except WrongRevision:
            continue


async def test_a_waiting_run_ends_without_ever_starting(service: RunsUnderTest) -> None:
    run_id = await service.submit()
    answer = await service.client.post(f"/runs/{run_id}/cancel", json={"reason": "a typo"})
    assert answer.status_code == 200
    body = answer.json()
    assert (body["status"], body["cancel_requested_by"], body["cancel_reason"]) == (
        "CANCELLING",
        "anonymous",
        "a typo",
    )
    assert body["cancel_requested_at"] == pytest.approx(time.time(), abs=30)
    await service.until_listed(run_id, status="CANCELLED", attempt=0)
    assert (await service.snapshot(run_id)).status is RunStatus.CANCELLED


async def test_a_cancelled_run_leaves_the_queue_and_others_stay_in_it(service: RunsUnderTest) -> None:
    first, second = [await service.submit(tag="nobodys") for _ in range(2)]
    await eventually(lambda: service.rows("SELECT * FROM outbox") == [])
    assert (await service.client.post(f"/runs/{first}/cancel")).status_code == 200

    async def is_gone() -> bool:
        return await service.jobs() == [second]

    await eventually(is_gone, what="the cancelled run's job leaving the queue")


async def test_a_place_in_the_queue_that_is_another_runs_by_now_is_left_alone(service: RunsUnderTest) -> None:
    first, second = [await service.submit(tag="nobodys") for _ in range(2)]
    await eventually(lambda: service.rows("SELECT * FROM outbox") == [])
    (place,) = service.rows(f"SELECT job_sequence FROM runs WHERE run_id = '{second}'")
    # As after a wipe of the stream, when numbers begin anew.
    with service.database.writer.begin() as connection:
        connection.execute(
            text("UPDATE runs SET job_sequence = :place WHERE run_id = :run_id"),
            {"place": place.job_sequence, "run_id": first},
        )
    await service.client.post(f"/runs/{first}/cancel")
    await service.until_listed(first, status="CANCELLED")
    await service.app.state.service.cancellation.stop()
    assert sorted(await service.jobs()) == sorted([first, second])


@pytest.mark.own_nats
async def test_a_cancel_that_was_answered_survives_a_wiped_nats(
    nats_server: NatsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NATS loses everything before the ledger has heard anything from it."""
    deaf = asyncio.Event()

    async def hear_nothing(*_: object) -> None:
        await deaf.wait()

    async with runs_running(runs_settings(nats_server, tmp_path, run_check_interval_sec=600)) as service:
        waiting, held = await service.submit(), await service.submit()
        await service.claim(held)
        await service.until_listed(held, status="RUNNING")
        monkeypatch.setattr(service.app.state.service._ingest, "_fold", hear_nothing)
        for run_id in (waiting, held):
            answer = await service.client.post(f"/runs/{run_id}/cancel", json={"reason": "a typo"})
            assert (answer.status_code, answer.json()["status"]) == (200, "CANCELLING")
        nats_server.kill()
        nats_server.wipe()
        nats_server.start()
        monkeypatch.undo()
        deaf.set()
        for run_id in (waiting, held):
            await service.until_listed(run_id, status="CANCELLED")
            shown = (await service.client.get(f"/runs/{run_id}")).json()
            assert (shown["cancel_requested_by"], shown["cancel_reason"]) == ("anonymous", "a typo")


async def test_a_cancel_whose_process_dies_before_kv_knows_it_is_carried_by_the_next(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    settings = runs_settings(nats_server, tmp_path)
    async with runs_running(settings) as service:
        run_id = await service.submit(tag="nobodys")
        await eventually(lambda: service.rows("SELECT * FROM outbox") == [])
        await service.claim(run_id)
        await service.until_listed(run_id, status="RUNNING")
        request = CancelRequest(run_id, "anonymous", "somebody", None, now=time.time(), carry_at=time.time())
        with writing(service.database) as transaction:
            [asked] = cancel_requests.request_cancel(transaction, [request])
        assert asked is not None
        assert asked.status is RunStatus.CANCELLING

        async def knows() -> bool:
            """The holder goes on all the while, and its heartbeats do not make the ledger forget the request."""
            await service.change(run_id, lambda s: s.model_copy(update={"heartbeat_at": time.time()}))
            assert (await service.listed(run_id))["status"] == "CANCELLING"
            return (await service.snapshot(run_id)).status is RunStatus.CANCELLING

        await eventually(knows, within=60, what="KV knowing of the cancel")
        assert (await service.snapshot(run_id)).cancel_requested_by == "somebody"
        assert (await service.snapshot(run_id)).is_held
        await eventually(lambda: service.rows("SELECT * FROM outbox") == [], what="nothing left to carry")


async def test_the_holder_of_a_running_run_is_notified_at_once(service: RunsUnderTest) -> None:
    run_id = await service.submit()
    await service.claim(run_id)
    heard: list[Control] = []

    async def hear(msg: object) -> None:
        heard.append(Control.decode(msg.data))  # type: ignore[attr-defined]

    await service.link.client.subscribe("pyoco.control.w1", cb=hear)
    await service.link.client.flush()
    answer = await service.client.post(f"/runs/{run_id}/cancel")
    assert answer.json()["status"] == "CANCELLING"
    await eventually(lambda: heard)
    assert heard == [Control(kind=ControlKind.CANCEL, run_id=run_id)]
    snapshot = await service.snapshot(run_id)
    assert (snapshot.status, snapshot.worker_id) == (RunStatus.CANCELLING, "w1")


@pytest.mark.parametrize("status", [RunStatus.COMPLETED, RunStatus.FAILED, RunStatus.CANCELLED])
async def test_a_run_that_has_ended_stays_as_it_ended(service: RunsUnderTest, status: RunStatus) -> None:
    run_id = await service.submit()
    await service.claim(run_id)
    await finish(service, run_id, status)
    before = await service.runs.get(run_id)
    for _ in range(2):
        answer = await service.client.post(f"/runs/{run_id}/cancel")
        assert (answer.status_code, answer.json()["status"]) == (200, status.value)
    assert await service.runs.get(run_id) == before


async def test_of_many_cancels_at_once_the_first_one_stands(service: RunsUnderTest) -> None:
    run_id = await service.submit()
    await service.claim(run_id)
    answers = await asyncio.gather(
        *(service.client.post(f"/runs/{run_id}/cancel", json={"reason": str(i)}) for i in range(20))
    )
    requests = {(answer.json()["cancel_requested_at"], answer.json()["cancel_reason"]) for answer in answers}
    assert len(requests) == 1


@pytest.mark.parametrize("ending", [RunStatus.COMPLETED, RunStatus.FAILED])
async def test_a_cancel_that_races_with_the_end_leaves_exactly_one_end(
    service: RunsUnderTest, ending: RunStatus
) -> None:
    for _ in range(40):
        run_id = await service.submit()
        await service.claim(run_id)
        answer, _ = await asyncio.gather(
            service.client.post(f"/runs/{run_id}/cancel"), finish(service, run_id, ending)
        )
        assert answer.json()["status"] in ("CANCELLING", ending.value)
        await service.until_listed(run_id, status=ending.value)
        assert (await service.snapshot(run_id)).status is ending


async def test_nobody_cancels_what_is_not_theirs_or_not_there(service: RunsUnderTest) -> None:
    run_id = await service.submit()
    for path, headers in (
        (f"/runs/{run_id}/cancel", {HEADER_TENANT_ID: "other"}),
        ("/runs/6f1c1a34-8c0e-4e37-9b1b-000000000000/cancel", {}),
        ("/runs/nope/cancel", {}),
    ):
        answer = await service.client.post(path, headers=headers)
        assert answer.status_code == 404
        assert answer.json()["error"]["meta"]["err_id"] == "ERR-PYOCO-0005"
    assert (await service.snapshot(run_id)).status is RunStatus.PENDING


@pytest.mark.parametrize(
    "body", [b"{", b"[]", b'{"reason": 7}', b'{"reason": "\\u009b"}', b'{"reason": "' + b"x" * 1001 + b'"}']
)
async def test_a_bad_body_is_refused(service: RunsUnderTest, body: bytes) -> None:
    run_id = await service.submit()
    answer = await service.client.post(
        f"/runs/{run_id}/cancel", content=body, headers={"content-type": "application/json"}
    )
    assert answer.status_code == 422
    assert answer.json()["error"]["meta"]["err_id"] == "ERR-PYOCO-0002"


@pytest.mark.own_nats
async def test_without_nats_nothing_is_cancelled(service: RunsUnderTest, nats_server: NatsServer) -> None:
    run_id = await service.submit()
    nats_server.kill()
    answer = await service.client.post(f"/runs/{run_id}/cancel")
    assert answer.status_code == 503
    assert answer.json()["error"]["meta"]["err_id"] == "ERR-PYOCO-0003"
    nats_server.start()
    snapshot = await eventually(lambda: service.found(run_id), within=30)
    assert snapshot is not None
    assert snapshot.status is RunStatus.PENDING
