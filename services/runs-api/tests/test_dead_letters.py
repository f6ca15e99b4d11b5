"""Dead letters over HTTP: taken in from the stream, looked through, requeued at a rate, deleted for good."""

import asyncio
import time
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
from nats.js import api
from sqlalchemy import make_url

from fleet_contracts.dead_letter import DeadLetter
from fleet_contracts.names import ANONYMOUS_TENANT, HEADER_TENANT_ID, NATS_MSG_ID
from fleet_contracts.status import RunStatus
from fleet_kit.errors import NatsUnavailable
from fleet_kit.nats.link import NatsLink
from fleet_kit.nats.resources import ensure_stream
from fleet_kit.nats.streams import dlq_stream_config
from fleet_testkit.nats_server import NatsServer
from fleet_testkit.waiting import eventually

from .conftest import RunsUnderTest, runs_running, runs_settings

ACME = {HEADER_TENANT_ID: "acme"}


async def bury(link: NatsLink, *, data: bytes | None = None, given_id: str | None = None, **said: Any) -> None:
    """Publish a letter as a worker does."""
    said = {"timestamp": time.time(), "reason": "execution_error", "error": "ValueError: no"} | said
    headers = {NATS_MSG_ID: given_id} if given_id else None
    body = DeadLetter(**said).encode() if data is None else data
    await link.publish("pyoco.dlq.default", body, headers)


async def fail(
    service: RunsUnderTest, flow: str = "hello", *, letter: bool = True, error: str = "ValueError: no"
) -> str:
    """A run that has failed, with its letter."""
    run_id = await service.submit(flow)
    await service.claim(run_id)
    await service.change(
        run_id,
        lambda s: s.finish(RunStatus.FAILED, now=time.time(), error=error, reason="execution_error"),
    )
    await service.until_listed(run_id, status="FAILED")
    if letter:
        await bury(service.link, run_id=run_id, flow_name=flow, tag="default", attempt=1)
    return run_id


async def letters(service: RunsUnderTest, **query: Any) -> list[dict[str, Any]]:
    answer = await service.client.get("/dlq", params=query)
    assert answer.status_code == 200, answer.text
    items: list[dict[str, Any]] = answer.json()["items"]
    return items


async def until_letters(service: RunsUnderTest, count: int, **query: Any) -> list[dict[str, Any]]:
    async def look() -> list[dict[str, Any]] | None:
        found = await letters(service, **{"limit": 200} | query)
        return found if len(found) == count else None

    found = await eventually(look, within=20, what=f"{count} letters")
    assert found is not None
    return found


async def until_total(service: RunsUnderTest, count: int) -> None:
    async def look() -> bool:
        answer = await service.client.get("/dlq")
        return answer.status_code == 200 and answer.json()["total_open"] == count

    await eventually(look, within=20, what=f"{count} open letters")


async def metric(service: RunsUnderTest, name: str) -> float:
    text = (await service.client.get("/fleet/metrics")).text
    [value] = [line.split()[-1] for line in text.splitlines() if line.startswith(f"{name} ")]
    return float(value)


def error_of(answer: httpx.Response) -> dict[str, Any]:
    error: dict[str, Any] = answer.json()["error"]
    assert answer.json()["detail"] == error["message"]
    return error


async def test_a_letter_of_the_stream_is_listed_grouped_counted_and_read(service: RunsUnderTest) -> None:
    run_id = await fail(service)
    [item] = await until_letters(service, 1)
    assert (item["run_id"], item["flow_name"], item["tag"], item["state"]) == (run_id, "hello", "default", "open")
    assert (item["reason"], item["error"], item["error_type"]) == ("execution_error", "ValueError: no", "ValueError")
    assert item["at"] == pytest.approx(time.time(), abs=60)
    answer = await service.client.get("/dlq/groups")
    [group] = answer.json()["items"]
    assert (group["fingerprint"], group["total"], group["error"]) == (item["fingerprint"], 1, "ValueError: no")
    assert answer.json()["total_open"] == (await service.client.get("/dlq")).json()["total_open"] == 1
    read = (await service.client.get(f"/dlq/{item['id']}")).json()
    assert read.items() >= item.items()
    assert (read["run"]["status"], read["run"]["attempt"]) == ("FAILED", 1)
    assert await metric(service, "pyoco_dlq_open_letters") == await metric(service, "pyoco_dlq_messages_total") == 1


async def test_letters_from_before_the_first_start_and_from_a_pause_are_taken_in_once(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    settings = runs_settings(nats_server, tmp_path)
    async with NatsLink(settings, name="peer") as peer:
        async with asyncio.timeout(30):
            await peer.wait_ready()
        await ensure_stream(peer.jetstream, dlq_stream_config(settings, settings))
        await asyncio.gather(*(bury(peer, error=f"ValueError: {number}") for number in range(300)))
        async with runs_running(settings) as service:
            await until_total(service, 300)
        await bury(peer, error="ValueError: late")
        async with runs_running(settings) as service:
            await until_total(service, 301)
            assert (await letters(service))[0]["error"] == "ValueError: late"
            assert len(service.rows("SELECT * FROM dead_letters")) == 301
            assert service.rows("SELECT total FROM dead_letter_groups")[0].total == 301


async def test_two_replicas_share_the_letters(nats_server: NatsServer, postgres_url: str, tmp_path: Path) -> None:
    settings = runs_settings(nats_server, tmp_path, runs_database_url=postgres_url)
    async with runs_running(settings) as one, runs_running(settings) as two:
        run_ids = [await fail(one, letter=False, error=f"E{number}: x") for number in range(4)]
        await asyncio.gather(*(bury(one.link, run_id=run_ids[i % 4], given_id=str(i)) for i in range(200)))
        await until_letters(two, 200)
        groups = (await two.client.get("/dlq/groups")).json()
        assert [group["total"] for group in groups["items"]] == [50] * 4
        [item] = await letters(one, limit=1, run_id=run_ids[0])
        outcomes = await asyncio.gather(
            *(replica.client.post(f"/dlq/{item['id']}/requeue") for replica in (one, two, one, two))
        )
        assert sorted(answer.status_code for answer in outcomes) == [200, 409, 409, 409]
        assert (await one.client.get("/dlq")).json()["total_open"] == 200 - 50


@pytest.mark.parametrize("data", [b"", b"no json", b'{"timestamp": 1}', b"\xff\x00"])
async def test_what_is_no_letter_is_shown_as_such_and_holds_up_nothing(service: RunsUnderTest, data: bytes) -> None:
    await bury(service.link, data=data)
    await bury(service.link, reason="flow_not_found", error=None)
    good, bad = await until_letters(service, 2)
    assert (good["reason"], bad["reason"]) == ("flow_not_found", "invalid_letter")
    assert (bad["tag"], bad["subject"], bad["run_id"]) == ("default", "pyoco.dlq.default", None)
    refused = await service.client.post(f"/dlq/{bad['id']}/requeue")
    assert (refused.status_code, error_of(refused)["meta"]["reason"]) == (409, "no_run")
    assert error_of(refused)["message"] == "This letter belongs to no run; submit a new run."


@pytest.mark.own_nats
async def test_letters_of_an_outage_of_nats_are_taken_in_when_it_is_back(
    service: RunsUnderTest, nats_server: NatsServer
) -> None:
    await bury(service.link)
    [item] = await until_letters(service, 1)
    nats_server.kill()

    async def is_away() -> bool:
        return (await service.client.get("/fleet/metrics")).status_code == 503

    await eventually(is_away, what="NATS being away")
    # Reading and deleting need SQL only; a requeue needs both, and leaves nothing behind.
    assert len(await letters(service)) == 1
    refused = await service.client.post(f"/dlq/{item['id']}/requeue")
    assert (refused.status_code, error_of(refused)["meta"]["err_id"]) == (503, "ERR-PYOCO-0003")
    nats_server.start()

    async def publish() -> bool:
        try:
            await bury(service.link, error="KeyError: later", given_id="later")
        except NatsUnavailable:
            return False
        return True

    await eventually(publish, within=20, what="NATS taking a letter")
    assert (await until_letters(service, 2))[0]["error"] == "KeyError: later"


async def test_letters_wait_in_the_stream_while_the_ledger_is_away(
    nats_server: NatsServer, postgres_server: str, postgres_url: str, tmp_path: Path
) -> None:
    name = make_url(postgres_url).database
    settings = runs_settings(nats_server, tmp_path, runs_database_url=postgres_url)
    async with runs_running(settings) as service:
        await bury(service.link)
        await until_letters(service, 1)
        with psycopg.connect(postgres_server, autocommit=True) as admin:
            admin.execute(f'ALTER DATABASE "{name}" WITH ALLOW_CONNECTIONS false')
            admin.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [name])
            for number in range(20):
                await bury(service.link, error=f"KeyError: {number}")

            async def is_held() -> bool:
                info = await service.link.jetstream.consumer_info("PYOCO_DLQ", "pyoco_runs_dlq")
                return bool(info.num_ack_pending)

            await eventually(is_held, what="letters in hand and not acked")
            assert (await service.client.get("/dlq")).status_code == 503
            admin.execute(f'ALTER DATABASE "{name}" WITH ALLOW_CONNECTIONS true')

        await until_total(service, 21)
        await eventually(lambda: acked(service), what="every message acked")


async def acked(service: RunsUnderTest) -> bool:
    info = await service.link.jetstream.consumer_info("PYOCO_DLQ", "pyoco_runs_dlq")
    return not info.num_ack_pending and not info.num_pending


async def test_a_requeued_run_waits_again_and_gets_a_job_of_its_own(
    service: RunsUnderTest, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="fleet_runs_api.dead_letters.letter")
    run_id = await fail(service)
    await bury(service.link, run_id=run_id, flow_name="hello", error="KeyError: 'x'")
    second, first = await until_letters(service, 2)
    await service.link.jetstream.purge_stream("PYOCO_WORK")
    answer = await service.client.post(f"/dlq/{first['id']}/requeue")
    assert answer.status_code == 200, answer.text
    assert answer.json() == {
        "id": first["id"],
        "run_id": run_id,
        "status": "PENDING",
        "attempt": 1,
        "letters": [first["id"], second["id"]],
    }
    snapshot = await service.snapshot(run_id)
    assert (snapshot.status, snapshot.attempt, snapshot.reopened) == (RunStatus.PENDING, 1, 1)
    assert await eventually(service.jobs) == [run_id]
    assert await letters(service) == (await service.client.get("/dlq/groups")).json()["items"] == []
    closed = await letters(service, state="requeued")
    assert [(item["id"], item["requeued_by"]) for item in closed] == [
        (second["id"], ANONYMOUS_TENANT),
        (first["id"], ANONYMOUS_TENANT),
    ]
    assert (await service.client.get(f"/dlq/{first['id']}")).json()["run"]["status"] == "PENDING"
    lines = [record for record in caplog.records if getattr(record, "event", "") == "dlq.transition"]
    assert [(r.status, r.meta["job_type"], r.meta["reason"]) for r in lines] == [  # type: ignore[attr-defined]
        ("entered", "hello", "execution_error"),
        ("entered", "hello", "execution_error"),
        ("requeued", "hello", "execution_error"),
        ("requeued", "hello", "execution_error"),
    ]
    again = await service.client.post(f"/dlq/{first['id']}/requeue")
    assert again.status_code == 409
    assert error_of(again)["meta"].items() >= {"reason": "requeued_already", "run_status": "PENDING"}.items()
    # It fails once more: a new attempt, a new letter.
    await service.claim(run_id)
    await service.change(run_id, lambda s: s.finish(RunStatus.FAILED, now=time.time(), error="no"))
    await service.until_listed(run_id, status="FAILED", attempt=2)
    await bury(service.link, run_id=run_id, attempt=2)
    [third] = await until_letters(service, 1)
    assert (await service.client.post(f"/dlq/{third['id']}/requeue")).json()["attempt"] == 2


async def test_a_letter_that_comes_before_the_ledger_has_folded_the_failure_is_taken_in(
    service: RunsUnderTest,
) -> None:
    for _ in range(5):
        run_id = await service.submit()
        await service.claim(run_id)
        await service.until_listed(run_id, status="RUNNING")
        await service.change(run_id, lambda s: s.finish(RunStatus.FAILED, now=time.time(), error="no"))
        await bury(service.link, run_id=run_id)
        [item] = await until_letters(service, 1)
        answer = await service.client.post(f"/dlq/{item['id']}/requeue")
        assert (answer.status_code, answer.json().get("status")) == (200, "PENDING"), answer.text
        assert (await service.snapshot(run_id)).status is RunStatus.PENDING


@pytest.mark.own_nats
async def test_letters_outlive_the_store_of_nats_and_so_does_what_they_need_to_be_requeued(
    service: RunsUnderTest, nats_server: NatsServer
) -> None:
    run_id = await fail(service)
    [item] = await until_letters(service, 1)
    nats_server.kill()
    nats_server.wipe()
    nats_server.start()

    async def requeue() -> httpx.Response | None:
        answer = await service.client.post(f"/dlq/{item['id']}/requeue")
        return answer if answer.status_code != 503 else None

    answer = await eventually(requeue, within=20, what="NATS being back")
    assert answer is not None
    assert (answer.status_code, answer.json()["run_id"]) == (200, run_id)
    assert await eventually(service.jobs) == [run_id]
    snapshot = await service.snapshot(run_id)
    assert (snapshot.status, snapshot.attempt) == (RunStatus.PENDING, 1)
    # Sequences begin anew: the next letter is another one all the same.
    await bury(service.link, error="KeyError: new")
    assert (await until_letters(service, 1))[0]["error"] == "KeyError: new"


async def test_a_letter_about_a_run_that_has_not_failed_changes_nothing_and_is_logged(
    service: RunsUnderTest, caplog: pytest.LogCaptureFixture
) -> None:
    run_id = await service.submit()
    await bury(service.link, run_id=run_id, tenant_id=ANONYMOUS_TENANT, flow_name="hello", tag="default")
    await bury(service.link, run_id="b0000000-0000-4000-8000-000000000000")
    [gone] = await until_letters(service, 1, state="all")
    assert gone["run_id"] != run_id
    assert "is left out: the run it names has not failed there" in caplog.text
    assert (await service.snapshot(run_id)).status is RunStatus.PENDING
    refused = await service.client.post(f"/dlq/{gone['id']}/requeue")
    assert (refused.status_code, error_of(refused)["meta"]["reason"]) == (409, "run_gone")
    assert (await service.client.get(f"/dlq/{gone['id']}")).json()["run"] is None


@pytest.mark.parametrize("letter_id", ["1", "999999", "nope", "0x1", "-1", "9" * 40])
async def test_a_letter_that_is_not_there_is_404(service: RunsUnderTest, letter_id: str) -> None:
    for request in (
        service.client.get(f"/dlq/{letter_id}"),
        service.client.post(f"/dlq/{letter_id}/requeue"),
        service.client.delete(f"/dlq/{letter_id}"),
    ):
        answer = await request
        assert (answer.status_code, error_of(answer)["code"]) == (404, "NOT_FOUND")


async def test_a_tenant_sees_and_changes_only_its_own_letters(service: RunsUnderTest) -> None:
    run_id = await fail(service)
    their_run = (await service.client.post("/runs", json={"flow_name": "hello"}, headers=ACME)).json()["run_id"]
    await service.change(their_run, lambda s: s.finish(RunStatus.FAILED, now=time.time(), error="KeyError: theirs"))
    # Whatever a letter says of tenants and errors: its run's are the ones.
    await bury(service.link, run_id=their_run, tenant_id=ANONYMOUS_TENANT, error="KeyError: forged")
    [mine] = await until_letters(service, 1)

    async def theirs(path: str) -> httpx.Response:
        return await service.client.get(path, headers=ACME)

    async def have_theirs() -> bool:
        return len((await theirs("/dlq")).json()["items"]) == 1

    await eventually(have_theirs)
    assert (await theirs("/dlq")).json()["items"][0]["error"] == "KeyError: theirs"
    assert (await theirs("/dlq")).json()["total_open"] == 1
    assert len((await theirs("/dlq/groups")).json()["items"]) == 1
    assert (await theirs(f"/dlq?run_id={run_id}&state=all")).json()["items"] == []
    assert (await theirs(f"/dlq/{mine['id']}")).status_code == 404
    assert (await service.client.post(f"/dlq/{mine['id']}/requeue", headers=ACME)).status_code == 404
    assert (await service.client.delete(f"/dlq/{mine['id']}", headers=ACME)).status_code == 404
    assert (await service.client.delete("/dlq?all=true", headers=ACME)).json()["deleted"] == 1
    done = await service.client.post("/dlq/requeue", json={"all": True}, headers=ACME)
    assert done.json()["requeued"] == 0
    assert (await service.snapshot(run_id)).status is RunStatus.FAILED
    assert len(await letters(service)) == 1
    assert (await service.client.get("/dlq", headers={HEADER_TENANT_ID: ""})).status_code == 401


@pytest.fixture
async def many(service: RunsUnderTest) -> RunsUnderTest:
    """Twenty-five letters without a run: five of each of five flows."""
    for number in range(25):
        await bury(service.link, flow_name=f"flow-{number % 5}", error=f"ValueError: {number}")
    await until_letters(service, 25)
    return service


async def test_a_walk_by_cursor_sees_every_letter_once_while_more_come(many: RunsUnderTest) -> None:
    seen: list[str] = []
    cursor: str | None = None
    while True:
        query = {"limit": 4} | ({"cursor": cursor} if cursor else {})
        page = (await many.client.get("/dlq", params=query)).json()
        seen += [item["error"] for item in page["items"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
        await bury(many.link, error="ValueError: newer")
    assert seen == [f"ValueError: {number}" for number in range(24, -1, -1)]


async def test_a_cursor_is_good_for_its_own_query_only(many: RunsUnderTest) -> None:
    cursor = (await many.client.get("/dlq", params={"limit": 4, "flow": "flow-1"})).json()["next_cursor"]
    again = await many.client.get("/dlq", params={"limit": 4, "flow": "flow-1", "cursor": cursor})
    assert [item["error"] for item in again.json()["items"]] == ["ValueError: 1"]
    for query, headers in (({}, {}), ({"flow": "flow-2"}, {}), ({"flow": "flow-1"}, ACME)):
        answer = await many.client.get("/dlq", params={"cursor": cursor, **query}, headers=headers)
        assert (answer.status_code, error_of(answer)["meta"]["err_id"]) == (422, "ERR-PYOCO-0017")
    assert (await many.client.get("/dlq", params={"cursor": "x"})).status_code == 422


@pytest.mark.parametrize(
    "query",
    [
        {"limit": 0},
        {"limit": 201},
        {"state": "deleted"},
        {"since": "nan"},
        {"until": -1},
        {"flow": "a\0"},
        {"flow": ""},
        {"fingerprint": "xyz"},
        {"resaon": "execution_error"},
    ],
)
async def test_a_query_that_makes_no_sense_is_refused(service: RunsUnderTest, query: dict[str, Any]) -> None:
    answer = await service.client.get("/dlq", params=query)
    assert (answer.status_code, error_of(answer)["meta"]["err_id"]) == (422, "ERR-PYOCO-0017")
    assert next(iter(query)) in error_of(answer)["message"]


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "not valid JSON"),
        (b"{}", "name at least one criterion"),
        (b'{"filter": {}}', "name at least one criterion"),
        (b'{"filter": {"reason": null}}', "name at least one criterion"),
        (b'{"filter": {"resaon": "x"}}', "resaon"),
        (b'{"all": true, "rate_per_sec": 0}', "rate_per_sec"),
        (b'{"all": true, "limit": 1001}', "limit"),
        (b'{"all": true, "cursor": "x"}', "cursor"),
    ],
)
async def test_a_requeue_by_filter_must_say_what_it_means(service: RunsUnderTest, body: bytes, says: str) -> None:
    answer = await service.client.post("/dlq/requeue", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 422
    assert says in error_of(answer)["message"]


async def test_runs_are_requeued_by_filter_at_a_rate(service: RunsUnderTest) -> None:
    wanted = [await fail(service, "wanted") for _ in range(4)]
    other = await fail(service, "other")
    await bury(service.link, flow_name="wanted", reason="invalid_job", error="Job: no")
    ids = {item["run_id"]: item["id"] for item in await until_letters(service, 6)}
    begun = time.time()
    body = {"filter": {"flow": "wanted"}, "rate_per_sec": 0.1, "limit": 3}
    first = (await service.client.post("/dlq/requeue", json=body)).json()
    assert (first["requeued"], first["skipped"], first["remaining"]) == (3, [], 2)
    assert begun + 20 <= first["last_due_at"] <= time.time() + 20
    more = {"cursor": first["next_cursor"], "start_at": first["last_due_at"] + 10}
    second = (await service.client.post("/dlq/requeue", json=body | more)).json()
    assert (second["requeued"], second["remaining"], second["next_cursor"]) == (1, 0, None)
    assert second["last_due_at"] == pytest.approx(first["last_due_at"] + 10)
    [skipped] = second["skipped"]
    assert (skipped["id"], skipped["reason"], skipped["run_status"]) == (ids[None], "no_run", None)
    assert "submit a new run" in skipped["detail"]
    due = {row.run_id: row.due_at for row in service.rows("SELECT run_id, due_at FROM outbox")}
    gaps = [due[run_id] - due[wanted[1]] for run_id in wanted[1:]]
    assert gaps == pytest.approx([0, 10, 20])
    # The oldest is due at once, and KV knows of all.
    assert wanted[0] in await eventually(service.jobs)
    states = [(await service.snapshot(run_id)).status for run_id in [*wanted, other]]
    assert states == [RunStatus.PENDING] * 4 + [RunStatus.FAILED]
    assert len(await letters(service)) == 2
    assert (await service.client.post("/dlq/requeue", json={"all": True})).json()["requeued"] == 1


@pytest.mark.own_nats
async def test_a_deleted_letter_never_comes_back_even_if_its_consumer_is_lost(
    service: RunsUnderTest, nats_server: NatsServer
) -> None:
    await bury(service.link)
    await bury(service.link, error="KeyError: kept")
    kept, gone = await until_letters(service, 2)
    assert (await service.client.delete(f"/dlq/{gone['id']}")).json() == {"id": gone["id"], "deleted": True}
    assert (await service.client.delete(f"/dlq/{gone['id']}")).status_code == 404
    assert (await service.client.get(f"/dlq/{gone['id']}")).status_code == 404
    await service.link.jetstream.delete_consumer("PYOCO_DLQ", "pyoco_runs_dlq")
    nats_server.stop()
    nats_server.start()

    async def all_delivered_again() -> bool:
        try:
            info = await service.link.jetstream.consumer_info("PYOCO_DLQ", "pyoco_runs_dlq")
        except Exception:  # noqa: BLE001 - NATS or the consumer is not back yet
            return False
        config: api.ConsumerConfig = info.config
        assert config.deliver_policy == api.DeliverPolicy.ALL
        return info.num_pending == 0 and info.num_ack_pending == 0 and info.delivered.stream_seq == 2

    await eventually(all_delivered_again, within=30, what="the stream delivered again")
    assert [item["id"] for item in await letters(service, state="all")] == [kept["id"]]
    assert (await service.client.get("/dlq")).json()["total_open"] == 1


async def test_letters_are_deleted_by_filter_a_bounded_number_at_a_time(many: RunsUnderTest) -> None:
    refused = await many.client.delete("/dlq")
    assert refused.status_code == 422
    assert "all=true" in error_of(refused)["message"]
    assert (await many.client.delete("/dlq", params={"flwo": "flow-1"})).status_code == 422
    first = (await many.client.delete("/dlq", params={"flow": "flow-1", "limit": 3})).json()
    assert (first["deleted"], first["more"]) == (3, True)
    query = {"flow": "flow-1", "limit": 3, "cursor": first["next_cursor"]}
    assert (await many.client.delete("/dlq", params=query)).json() == {
        "deleted": 2,
        "more": False,
        "next_cursor": None,
    }
    assert (await many.client.get("/dlq")).json()["total_open"] == 20
    assert (await many.client.delete("/dlq", params={"all": True})).json()["deleted"] == 20
    assert (await many.client.get("/dlq/groups")).json() == {"items": [], "total_open": 0}
    assert await metric(many, "pyoco_dlq_open_letters") == 0
    assert await metric(many, "pyoco_dlq_messages_total") == 25
