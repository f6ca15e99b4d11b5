"""Many runs in one request, and requests that are sent more than once."""

import asyncio
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import text

from fleet_runs_api.accept import acceptance
from fleet_runs_api.accept.acceptance import Withdrawal
from fleet_runs_api.accept.idempotency import Earlier, KeyUse
from fleet_runs_api.errors import LedgerUnavailable
from fleet_runs_api.ledger.documents import NewRun
from fleet_runs_api.ledger.sql.database import Database
from fleet_runs_api.repair import removal
from fleet_testkit.nats_server import NatsServer
from fleet_testkit.waiting import eventually

from .conftest import RunsUnderTest, accepting, runs_running, runs_settings, writing

KEY = "orders:4711:1760000000000"


async def post_batch(service: RunsUnderTest, runs: list[Any], **headers: str) -> httpx.Response:
    return await service.client.post("/runs/batch", json={"runs": runs}, headers=headers)


async def test_a_batch_is_accepted_and_queued_in_its_order(service: RunsUnderTest) -> None:
    answer = await post_batch(service, [{"flow_name": "hello", "params": {"i": i}} for i in range(1000)])
    assert answer.status_code == 200, answer.text
    submitted = answer.json()["runs"]
    ids = [run["run_id"] for run in submitted]
    assert len(set(ids)) == 1000
    assert {run["status"] for run in submitted} == {"PENDING"}
    await eventually(lambda: service.rows("SELECT * FROM outbox") == [], what="all being sent")
    assert await service.jobs() == ids
    assert (await service.snapshot(ids[999])).params == {"i": 999}


@pytest.mark.parametrize(
    ("bad", "where"),
    [
        ({"flow_name": ""}, "runs.2.flow_name"),
        ({"flow_name": "hello", "tag": "no tag!"}, "runs.2.tag"),
        ({"flow_name": "hello", "delay_sec": 1, "not_before": 2}, "runs.2"),
        ({"flow_name": "hello", "retry": {"max_attempts": 0}}, "runs.2.retry.max_attempts"),
        ({"flow_name": "hello", "deadline_at": 1}, "run 2 of the batch: the run's deadline"),
        ("hello", "runs.2"),
    ],
)
async def test_one_bad_run_refuses_the_whole_batch_and_is_named(service: RunsUnderTest, bad: Any, where: str) -> None:
    answer = await post_batch(service, [{"flow_name": "hello"}, {"flow_name": "hello"}, bad])
    assert answer.status_code == 422
    body = answer.json()
    assert body["error"]["meta"]["err_id"] == "ERR-PYOCO-0002"
    assert where in body["detail"]
    assert await service.jobs() == []
    assert service.rows("SELECT * FROM runs") == []


async def test_a_run_that_is_too_large_refuses_the_whole_batch_with_its_index(service: RunsUnderTest) -> None:
    answer = await post_batch(service, [{"flow_name": "hello"}, {"flow_name": "x", "params": {"x": "x" * 70_000}}])
    assert answer.status_code == 413
    assert answer.json()["error"]["meta"]["index"] == 1
    assert "run 1 of the batch" in answer.json()["detail"]
    assert service.rows("SELECT * FROM runs") == []


@pytest.mark.parametrize("count", [0, 1001])
async def test_a_batch_has_one_to_a_thousand_runs(service: RunsUnderTest, count: int) -> None:
    answer = await post_batch(service, [{"flow_name": "hello"}] * count)
    assert answer.status_code == 422
    assert "runs" in answer.json()["detail"]


@pytest.mark.own_nats
async def test_a_batch_that_nats_does_not_take_at_once_is_sent_later(nats_server: NatsServer, tmp_path: Path) -> None:
    async with runs_running(runs_settings(nats_server, tmp_path, nats_request_timeout_sec=1.0)) as service:
        nats_server.pause()
        sending = asyncio.create_task(post_batch(service, [{"flow_name": "hello"}] * 20))
        await eventually(lambda: len(service.rows("SELECT * FROM runs")) == 20, what="the batch being accepted")
        nats_server.kill()
        nats_server.start()
        answer = await sending
        assert answer.status_code == 200
        ids = {run["run_id"] for run in answer.json()["runs"]}

        async def all_queued() -> bool:
            return set(await service.jobs()) == ids

        await eventually(all_queued, within=30, what="every run of the batch being queued")


async def test_the_same_key_and_body_get_the_first_answer_again(service: RunsUnderTest) -> None:
    body = {"flow_name": "hello", "params": {"a": 1, "b": 2}}
    first = await service.client.post("/runs", json=body, headers={"Idempotency-Key": KEY})
    same = {"params": {"b": 2, "a": 1}, "flow_name": "hello"}
    again = await service.client.post("/runs", json=same, headers={"Idempotency-Key": KEY})
    assert first.status_code == again.status_code == 200
    assert again.json() == first.json()
    assert again.headers["Idempotency-Replayed"] == "true"
    assert "Idempotency-Replayed" not in first.headers
    assert await service.jobs() == [first.json()["run_id"]]


async def test_the_same_key_with_another_body_is_a_conflict_that_names_the_run(service: RunsUnderTest) -> None:
    first = await service.client.post("/runs", json={"flow_name": "hello"}, headers={"Idempotency-Key": KEY})
    other = await service.client.post("/runs", json={"flow_name": "bye"}, headers={"Idempotency-Key": KEY})
    assert other.status_code == 409
    assert other.json()["error"]["meta"]["run_id"] == first.json()["run_id"]
    assert KEY in other.json()["detail"]


async def test_a_key_belongs_to_its_tenant(service: RunsUnderTest) -> None:
    acme = {"X-Pyoco-Tenant-Id": "acme", "X-Pyoco-Scopes": "runs:write", "Idempotency-Key": KEY}
    first = await service.client.post("/runs", json={"flow_name": "hello"}, headers={"Idempotency-Key": KEY})
    other = await service.client.post("/runs", json={"flow_name": "bye"}, headers=acme)
    assert other.status_code == 200
    assert other.json()["run_id"] != first.json()["run_id"]


async def test_many_requests_with_one_key_at_once_make_one_run(service: RunsUnderTest) -> None:
    async def post() -> str:
        answer = await service.client.post("/runs", json={"flow_name": "hello"}, headers={"Idempotency-Key": KEY})
        assert answer.status_code == 200, answer.text
        return str(answer.json()["run_id"])

    ids = await asyncio.gather(*(post() for _ in range(30)))
    assert len(set(ids)) == 1
    assert await service.jobs() == [ids[0]]


async def test_a_batch_is_replayed_as_a_whole(service: RunsUnderTest) -> None:
    runs = [{"flow_name": "hello", "params": {"i": i}} for i in range(3)]
    first = await post_batch(service, runs, **{"Idempotency-Key": KEY})
    again = await post_batch(service, runs, **{"Idempotency-Key": KEY})
    assert again.json() == first.json()
    assert len(service.rows("SELECT * FROM runs")) == 3
    assert (await post_batch(service, runs[:2], **{"Idempotency-Key": KEY})).status_code == 409


@pytest.mark.parametrize(
    "key", ["7", "5aae94e9-442c-4020-a518-3ab2e91868e3", "any text, as long as it is printable: {}~", "x" * 255]
)
async def test_a_key_may_be_any_printable_text(service: RunsUnderTest, key: str) -> None:
    for flow_name, status in (("hello", 200), ("hello", 200), ("bye", 409)):
        answer = await service.client.post("/runs", json={"flow_name": flow_name}, headers={"Idempotency-Key": key})
        assert answer.status_code == status, answer.text
    assert len(service.rows("SELECT * FROM runs")) == 1


@pytest.mark.parametrize("key", [b"", b"x" * 256, b"a\tb", "schlüssel".encode(), b"caf\xe9"])
async def test_a_key_that_cannot_be_printed_is_refused_with_an_example(service: RunsUnderTest, key: bytes) -> None:
    answer = await service.client.post("/runs", json={"flow_name": "hello"}, headers={"Idempotency-Key": key})
    assert answer.status_code == 422
    assert "orders:4711:1760000000000" in answer.json()["detail"]
    assert "Idempotency-Key" in answer.json()["detail"]


@pytest.mark.own_nats
async def test_a_withdrawn_submit_leaves_its_key_free(nats_server: NatsServer, tmp_path: Path) -> None:
    async with runs_running(runs_settings(nats_server, tmp_path, nats_request_timeout_sec=1.0)) as service:
        nats_server.pause()
        refused = await service.client.post("/runs", json={"flow_name": "hello"}, headers={"Idempotency-Key": KEY})
        assert refused.status_code == 503
        assert service.rows("SELECT * FROM idempotency_keys") == []
        nats_server.resume()

        async def accepted() -> bool:
            again = await service.client.post("/runs", json={"flow_name": "hello"}, headers={"Idempotency-Key": KEY})
            return again.status_code == 200

        await eventually(accepted, within=20, what="the key being good for a second try")


def test_keys_work_on_both_databases(database: Database, new_run: NewRun) -> None:
    use = KeyUse("anonymous", KEY, "f" * 64, (new_run.job.run_id,), time.time())
    with writing(database) as transaction:
        assert acceptance.accept(transaction, [accepting(new_run, key=use), accepting(new_run, key=use)]) == [
            None,
            Earlier("f" * 64, (new_run.job.run_id,)),
        ]
    with writing(database) as transaction:
        assert acceptance.withdraw(transaction, [Withdrawal(new_run.job.run_id, 1.0, use)]) == [True]
        assert acceptance.accept(transaction, [accepting(new_run, key=use)]) == [None]
        removal.forget_old_keys(transaction, [time.time() + 1])
        assert acceptance.accept(transaction, [accepting(key=use)]) == [None]


async def test_a_rerun_is_a_new_run_with_the_same_input_that_names_the_first(service: RunsUnderTest) -> None:
    first = await service.submit("hello", params={"name": "Ada"}, tags=["x"], timeout_sec=60)
    answer = await service.client.post(f"/runs/{first}/rerun")
    assert answer.status_code == 200, answer.text
    second = answer.json()["run_id"]
    shown = (await service.client.get(f"/runs/{second}")).json()
    assert second != first
    assert (shown["rerun_of"], shown["params"], shown["tags"]) == (first, {"name": "Ada"}, ["x"])
    assert shown["deadline_at"] == pytest.approx(time.time() + 60, abs=10)


async def test_only_runs_of_the_own_tenant_are_run_again(service: RunsUnderTest) -> None:
    run_id = await service.submit()
    acme = {"X-Pyoco-Tenant-Id": "acme", "X-Pyoco-Scopes": "runs:write"}
    assert (await service.client.post(f"/runs/{run_id}/rerun", headers=acme)).status_code == 404
    assert (await service.client.post("/runs/nonsense/rerun")).status_code == 404


async def test_a_repeated_submit_takes_the_place_of_one_that_is_withdrawn_meanwhile(
    service: RunsUnderTest, new_run: NewRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Withdrawn after the repeated one has read of it, and before that one has looked how it fares."""
    inner = service.app.state.service.submission
    use = KeyUse("anonymous", KEY, "f" * 64, (new_run.job.run_id,), time.time())
    assert await inner._commits.write(acceptance.accept, accepting(new_run, key=use)) is None
    fetch = inner._database.fetch

    async def withdrawn_first(query: object) -> object:
        monkeypatch.setattr(inner._database, "fetch", fetch)
        withdrawal = Withdrawal(new_run.job.run_id, time.time(), use)
        assert await inner._commits.write(acceptance.withdraw, withdrawal) is True
        return await fetch(query)

    monkeypatch.setattr(inner._database, "fetch", withdrawn_first)
    answer = await service.client.post("/runs", json={"flow_name": "hello"}, headers={"Idempotency-Key": KEY})
    assert answer.status_code == 200, answer.text
    run_id = answer.json()["run_id"]
    assert run_id != new_run.job.run_id
    assert [row.run_id for row in service.rows("SELECT run_id FROM runs")] == [run_id]


async def test_the_answer_to_a_repeated_submit_whose_second_look_is_cut_off_says_that_it_may_be_accepted(
    service: RunsUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    headers = {"Idempotency-Key": KEY}
    await service.client.post("/runs", json={"flow_name": "hello"}, headers=headers)
    await eventually(lambda: service.rows("SELECT * FROM outbox") == [])
    with service.database.writer.begin() as connection:
        connection.execute(text("DELETE FROM runs"))
    inner = service.app.state.service.submission
    write = inner._commits.write

    async def cut_off_next_time(batch: object, item: object) -> object:
        monkeypatch.setattr(inner._commits, "write", cut_off)
        return await write(batch, item)

    async def cut_off(batch: object, item: object) -> object:
        error = LedgerUnavailable()
        error.may_be_written = True
        raise error

    monkeypatch.setattr(inner._commits, "write", cut_off_next_time)
    answer = await service.client.post("/runs", json={"flow_name": "hello"}, headers=headers)
    assert answer.status_code == 503
    assert "not known whether the run was accepted" in answer.json()["detail"]


async def test_a_key_outlives_its_run(service: RunsUnderTest) -> None:
    headers = {"Idempotency-Key": KEY}
    first = (await service.client.post("/runs", json={"flow_name": "hello"}, headers=headers)).json()["run_id"]
    await eventually(lambda: service.rows("SELECT * FROM outbox") == [])
    with service.database.writer.begin() as connection:
        connection.execute(text("DELETE FROM runs"))
    again = await service.client.post("/runs", json={"flow_name": "hello"}, headers=headers)
    assert (again.status_code, again.json()["run_id"]) == (200, first)
