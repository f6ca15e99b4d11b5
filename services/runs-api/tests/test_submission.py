"""Submitting: on disk and on the queue before the answer; nothing left behind when that is impossible."""

import asyncio
import threading
from pathlib import Path
from typing import Any

import httpx
import nats
import orjson
import pytest
from nats.js import api

from fleet_contracts.names import HEADER_SCOPES
from fleet_contracts.status import RunStatus
from fleet_runs_api.accept import acceptance, jobs, submission
from fleet_runs_api.ledger.documents import NewRun
from fleet_runs_api.ledger.sql.database import Database
from fleet_testkit.nats_server import NatsServer
from fleet_testkit.waiting import eventually

from .conftest import RunsUnderTest, accepting, runs_running, runs_settings, writing


async def test_an_accepted_run_is_in_the_ledger_in_kv_and_on_the_queue(service: RunsUnderTest) -> None:
    answer = await service.client.post("/runs", json={"flow_name": "hello", "params": {"name": "Ada"}})
    assert answer.status_code == 200
    body = answer.json()
    assert body["status"] == "PENDING"
    snapshot = await service.snapshot(body["run_id"])
    assert (snapshot.status, snapshot.params, snapshot.tag, snapshot.tags) == (
        RunStatus.PENDING,
        {"name": "Ada"},
        "default",
        ["default"],
    )
    assert await service.jobs() == [body["run_id"]]
    assert (await service.listed(body["run_id"]))["status"] == "PENDING"
    await eventually(lambda: service.rows("SELECT * FROM outbox") == [], what="the outbox being empty")


async def test_many_submits_at_once_all_arrive(service: RunsUnderTest) -> None:
    ids = await asyncio.gather(*(service.submit(params={"i": i}) for i in range(200)))
    assert len(set(ids)) == 200
    assert sorted(await service.jobs()) == sorted(ids)
    assert service.rows("SELECT total FROM run_counts WHERE status = 'PENDING'")[0].total == 200


@pytest.mark.parametrize("path", ["/runs", "/runs/batch", "/runs/yaml"])
async def test_who_may_only_read_submits_nothing(service: RunsUnderTest, path: str) -> None:
    answer = await service.client.post(path, json={"flow_name": "hello"}, headers={HEADER_SCOPES: "runs:read"})
    assert answer.status_code == 403
    assert answer.json()["error"]["meta"]["missing_scope"] == "runs:write"
    assert service.rows("SELECT * FROM runs") == []


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"{", "not valid JSON"),
        (b"[]", "an object"),
        (b'{"flow_name": ""}', "flow_name"),
        (b'{"params": {}}', "flow_name: Field required"),
        (b'{"flow_name": "a", "params": []}', "params"),
        (b'{"flow_name": "a", "tag": "a.b"}', "tag"),
        (b'{"flow_name": "a", "tags": "x"}', "tags"),
        (b'{"flow_name": "a\\u0000"}', "flow_name"),
        (b'{"flow_name": "a\\u009b31m"}', "flow_name"),
        (b'{"flow_name": "a", "tags": ["b\\u0085"]}', "tags.0"),
        (
            b'{"flow_name": "a", "parms": {}}',
            'body: unknown key "parms" (did you mean "params"?); known: check_params,',
        ),
        (
            b'{"flow_name": "a", "retry": {"attempts": 2}}',
            'retry: unknown key "attempts" (did you mean "max_attempts"?)',
        ),
        (b'{"flow_name": "a", "params": {"x": NaN}}', "not valid JSON"),
        (b'{"flow_name": "a", "params": {"x": "\\ud800"}}', "not valid JSON"),
        (b'{"flow_name": "a", "params": ' + b'{"x":' * 500 + b"1" + b"}" * 500 + b"}", "not valid JSON"),
        (b"\xff\xfe", "not valid JSON"),
    ],
)
async def test_bad_input_is_refused_with_a_sentence(service: RunsUnderTest, body: bytes, says: str) -> None:
    answer = await service.client.post("/runs", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 422
    error = answer.json()["error"]
    assert error["meta"]["err_id"] == "ERR-PYOCO-0002"
    assert error["meta"]["request_id"] == answer.headers["x-request-id"]
    assert says in error["message"]
    assert answer.json()["detail"] == error["message"]
    assert service.rows("SELECT * FROM runs") == []


async def test_numbers_of_any_size_travel_unharmed(service: RunsUnderTest) -> None:
    run_id = await service.submit(params={"big": 2**80})
    assert (await service.client.get(f"/runs/{run_id}")).json()["params"] == {"big": 2**80}


async def test_input_that_no_message_can_carry_is_refused_with_the_limit(service: RunsUnderTest) -> None:
    answer = await service.client.post("/runs", json={"flow_name": "a", "params": {"x": "y" * 70_000}})
    assert answer.status_code == 413
    assert "at most 61440 are allowed" in answer.json()["detail"]
    assert service.rows("SELECT * FROM runs") == []


async def test_a_large_submit_is_prepared_beside_the_event_loop_once_its_size_is_allowed(
    service: RunsUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[str] = []

    def note_thread(*asked: Any) -> str:
        threads.append(threading.current_thread().name)
        return jobs.fingerprint(*asked)

    monkeypatch.setattr(submission, "fingerprint", note_thread)

    async def post(path: str, body: Any, *, padding: int = 0) -> httpx.Response:
        content = orjson.dumps(body) + b" " * padding
        headers = {"Idempotency-Key": path, "Content-Type": "application/json", "X-Request-Id": "asked-by-me"}
        return await service.client.post(path, content=content, headers=headers)

    run = {"flow_name": "a"}
    assert (await post("/runs", {**run, "params": {"x": "y" * 70_000}})).status_code == 413
    assert threads == []
    assert (await post("/runs", run, padding=70_000)).status_code == 200
    assert (await post("/runs/batch", {"runs": [run]})).status_code == 200
    assert [name.rpartition("_")[0] for name in threads] == ["large-body"] * 2
    asked = [orjson.loads(row.job)["request_id"] for row in service.rows("SELECT job FROM run_documents")]
    assert asked == ["asked-by-me"] * 2


async def test_without_identity_nobody_gets_in(service: RunsUnderTest) -> None:
    transport = httpx.ASGITransport(service.app)
    async with httpx.AsyncClient(transport=transport, base_url="http://service") as stranger:
        assert (await stranger.post("/runs", json={"flow_name": "a"})).status_code == 401
        assert (await stranger.get("/runs")).status_code == 401


@pytest.mark.own_nats
async def test_nats_away_leaves_nothing_and_nats_back_needs_no_restart(
    service: RunsUnderTest, nats_server: NatsServer
) -> None:
    before = await service.submit()
    nats_server.kill()
    answer = await service.client.post("/runs", json={"flow_name": "hello"})
    assert answer.status_code == 503
    assert answer.json()["error"]["meta"]["err_id"] == "ERR-PYOCO-0003"
    assert (await service.client.get(f"/runs/{before}")).status_code == 503
    assert [row.run_id for row in service.rows("SELECT run_id FROM runs")] == [before]
    nats_server.start()

    async def works() -> bool:
        return (await service.client.post("/runs", json={"flow_name": "hello"})).status_code == 200

    await eventually(works, within=30)
    keys = await (await service.link.jetstream.key_value("pyoco_runs")).keys()
    assert sorted(keys) == sorted(row.run_id for row in service.rows("SELECT run_id FROM runs"))
    assert len(keys) == 2


@pytest.mark.own_nats
async def test_a_nats_that_hangs_is_given_up_and_leaves_nothing(
    service: RunsUnderTest, nats_server: NatsServer
) -> None:
    nats_server.pause()
    answer = await service.client.post("/runs", json={"flow_name": "hello"})
    assert answer.status_code == 503
    assert service.rows("SELECT * FROM runs") == []
    nats_server.resume()
    await eventually(lambda: service.rows("SELECT * FROM outbox") == [], within=30, what="traces removed")

    async def bucket_is_empty() -> bool:
        return (await service.link.stream_info("KV_pyoco_runs")).state.messages <= 1  # the purge marker

    await eventually(bucket_is_empty)


@pytest.mark.own_nats
async def test_a_refused_submit_never_becomes_a_job_however_late_nats_reads_it(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    """A paused server finds all that was sent to it in its socket's buffer when it goes on."""
    async with runs_running(runs_settings(nats_server, tmp_path, nats_request_timeout_sec=1.0)) as service:
        headers = [{"Idempotency-Key": f"late:{i}:1760000000000"} for i in range(20)]

        async def submit(key: dict[str, str]) -> httpx.Response:
            return await service.client.post("/runs", json={"flow_name": "hello"}, headers=key)

        nats_server.pause()
        refused = await asyncio.gather(*(submit(key) for key in headers))
        assert [answer.status_code for answer in refused] == [503] * 20
        nats_server.resume()

        async def submitted(key: dict[str, str]) -> str | None:
            answer = await submit(key)
            return answer.json()["run_id"] if answer.status_code == 200 else None

        accepted = [await eventually(lambda key=key: submitted(key), within=60) for key in headers]
        await eventually(
            lambda: service.rows("SELECT * FROM outbox") == [], within=60, what="all sent, traces removed"
        )
        assert sorted(await service.jobs()) == sorted(accepted)
        keys = await (await service.link.jetstream.key_value("pyoco_runs")).keys()
        assert sorted(keys) == sorted(accepted)


@pytest.mark.own_nats
async def test_a_run_whose_job_may_have_arrived_is_accepted_and_becomes_one_job(
    nats_server: NatsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NATS stops between the snapshot, which it has acknowledged, and the job."""
    async with runs_running(runs_settings(nats_server, tmp_path, nats_request_timeout_sec=1.0)) as service:
        relay = service.app.state.service._relay
        send_job = relay._queue_nowait

        async def pause_and_send(*args: Any, **options: Any) -> Any:
            monkeypatch.setattr(relay, "_queue_nowait", send_job)
            nats_server.pause()
            return await send_job(*args, **options)

        monkeypatch.setattr(relay, "_queue_nowait", pause_and_send)
        headers = {"Idempotency-Key": "once:1:1760000000000"}
        first = await service.client.post("/runs", json={"flow_name": "hello"}, headers=headers)
        assert first.status_code == 200, first.text
        nats_server.resume()
        await eventually(lambda: service.rows("SELECT * FROM outbox") == [], within=60, what="the job being sent")
        assert await eventually(service.jobs, within=60) == [first.json()["run_id"]]
        again = await service.client.post("/runs", json={"flow_name": "hello"}, headers=headers)
        assert again.json() == first.json()


async def test_when_only_the_queue_refuses_no_snapshot_remains(service: RunsUnderTest) -> None:
    js = service.link.jetstream
    info = await js.stream_info("PYOCO_WORK")
    info.config.max_msg_size = 10
    await js.update_stream(info.config)
    answer = await service.client.post("/runs", json={"flow_name": "hello"})
    assert answer.status_code == 503
    assert service.rows("SELECT * FROM runs") == []
    assert service.rows("SELECT * FROM outbox") == []
    assert service.rows("SELECT * FROM run_counts WHERE total <> 0") == []
    info.config.max_msg_size = -1
    await js.update_stream(info.config)
    await service.submit()


async def test_a_run_accepted_by_a_process_that_died_is_sent_by_the_next(
    nats_server: NatsServer, tmp_path: Path, new_run: NewRun
) -> None:
    settings = runs_settings(nats_server, tmp_path)
    database = Database(settings.runs_database_url)
    database.migrate()
    with writing(database) as transaction:
        acceptance.accept(transaction, [accepting(new_run)])
    database.dispose()
    async with runs_running(settings) as service:
        assert await eventually(service.jobs) == [new_run.job.run_id]
        await eventually(lambda: service.rows("SELECT * FROM outbox") == [])
        assert (await service.snapshot(new_run.job.run_id)).status is RunStatus.PENDING


async def test_a_dispatch_sent_twice_is_one_job(nats_server: NatsServer, tmp_path: Path) -> None:
    settings = runs_settings(nats_server, tmp_path)
    async with runs_running(settings) as service:
        run_id = await service.submit()
        await eventually(lambda: service.rows("SELECT * FROM outbox") == [])
        with service.database.writer.begin() as connection:
            connection.exec_driver_sql(
                f"INSERT INTO outbox (kind, run_id, dispatch, due_at) VALUES ('dispatch', '{run_id}', 1, 0)"
            )
        await eventually(lambda: service.rows("SELECT * FROM outbox") == [])
        assert await service.jobs() == [run_id]


async def test_existing_streams_keep_their_settings(nats_server: NatsServer, tmp_path: Path) -> None:
    settings = runs_settings(nats_server, tmp_path)
    client = await nats.connect(nats_server.url)
    js = client.jetstream()
    await js.add_stream(
        api.StreamConfig(
            name="PYOCO_WORK", subjects=["pyoco.work.>"], retention=api.RetentionPolicy.WORK_QUEUE, max_msgs=77
        )
    )
    await js.create_key_value(bucket="pyoco_runs", history=5)
    async with runs_running(settings) as service:
        run_id = await service.submit()
        assert (await service.client.get(f"/runs/{run_id}")).status_code == 200
        assert (await service.link.stream_info("PYOCO_WORK")).config.max_msgs == 77
        assert (await service.link.stream_info("KV_pyoco_runs")).config.max_msgs_per_subject == 5
    await client.close()


@pytest.mark.parametrize("claimed", [True, False])
async def test_a_run_whose_job_was_stored_and_denied_is_either_accepted_or_out_of_every_workers_reach(
    service: RunsUnderTest, monkeypatch: pytest.MonkeyPatch, claimed: bool
) -> None:
    """NATS denies a subject while its users are reloaded, and does not say which message it means."""
    submission = service.app.state.service.submission
    link = submission._link
    publish, withdraw = link.publish_nowait, submission._withdraw
    run_ids: list[str] = []

    async def publish_and_deny(subject: str, payload: bytes, *more: Any) -> Any:
        ack = await publish(subject, payload, *more)
        if subject == "pyoco.work.default" and not run_ids:
            link.deny(subject)
            run_ids.append(orjson.loads(payload)["run_id"])
            if claimed:
                await service.claim(run_ids[0])
        return ack

    async def look_and_withdraw(*about: Any) -> None:
        assert await service.found(run_ids[0]) is None, "a worker could claim it while it is withdrawn"
        await withdraw(*about)

    monkeypatch.setattr(link, "publish_nowait", publish_and_deny)
    monkeypatch.setattr(submission, "_withdraw", look_and_withdraw)
    answer = await service.client.post("/runs", json={"flow_name": "hello"})
    shown = await service.client.get(f"/runs/{run_ids[0]}")
    if claimed:
        assert (answer.status_code, shown.json()["status"]) == (200, "RUNNING")
    else:
        assert (answer.status_code, shown.status_code) == (503, 404)
