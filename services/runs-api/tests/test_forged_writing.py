"""What a worker writes about runs that are not in its hands: it may write any snapshot, and gains nothing by it."""

import json
import time
from pathlib import Path
from typing import Any

import pytest

from fleet_contracts.dead_letter import DeadLetter
from fleet_contracts.events import EventKind, RunEvent, RunEvents
from fleet_contracts.names import DEAD_LETTER_ID, HEADER_TENANT_ID, NATS_MSG_ID, WireNames, dead_letter_id
from fleet_contracts.snapshot import RunSnapshot
from fleet_contracts.status import RunStatus
from fleet_kit.nats.resources import ensure_consumer
from fleet_kit.nats.streams import work_consumer_config
from fleet_runs_api.fold import ingest
from fleet_testkit.nats_server import NatsServer
from fleet_testkit.scrapes import Scrape
from fleet_testkit.waiting import eventually

from .conftest import RunsUnderTest, runs_running, runs_settings

ACME = {HEADER_TENANT_ID: "acme"}
ACCEPTED = {"flow_name": "hello", "params": {"name": "Ada"}, "tag": "default", "tags": ["default"]}
FORGED: dict[str, Any] = {
    "tenant_id": "acme",
    "api_key_id": "stolen",
    "flow_name": "theirs",
    "params": {"name": "Eve"},
    "tag": "other",
    "tags": ["other"],
    "submitted_at": 1.0,
}


async def forge(service: RunsUnderTest, run_id: str, **said: Any) -> None:
    await service.change(run_id, lambda snapshot: snapshot.model_copy(update=said))


async def test_whose_a_run_is_and_what_was_asked_is_said_by_the_ledger(service: RunsUnderTest) -> None:
    run_id = await service.submit(params={"name": "Ada"})
    await service.claim(run_id)
    await forge(service, run_id, **FORGED, updated_at=time.time())
    await service.until_listed(run_id, status="RUNNING")
    [in_full] = (await service.client.get("/runs", params={"include": "full"})).json()
    shown = [(await service.client.get(f"/runs/{run_id}")).json(), in_full]
    watched = (await service.client.get(f"/runs/{run_id}/watch", params={"timeout_sec": 1})).text
    [first, *_] = [line for line in watched.splitlines() if line.startswith("data:")]
    shown.append(json.loads(first.removeprefix("data:"))["snapshot"])
    for run in shown:
        assert run.items() >= ACCEPTED.items()
        assert (run["tenant_id"], run["api_key_id"]) == (None, None)
        assert run["submitted_at"] > 1.0
    for path in ("", "/tasks", "/attempts", "/events", "/logs", "/result", "/watch"):
        assert (await service.client.get(f"/runs/{run_id}{path}", headers=ACME)).status_code == 404, path
    assert (await service.client.post(f"/runs/{run_id}/cancel", headers=ACME)).status_code == 404
    assert (await service.snapshot(run_id)).cancel_requested_at is None
    # What runs-api writes back is right again.
    assert (await service.client.post(f"/runs/{run_id}/cancel")).status_code == 200
    assert (await service.snapshot(run_id)).tenant_id is None


@pytest.mark.parametrize(
    "said",
    [{"reopened": 7}, {"attempt": 2**31 - 1}, {"not_before": time.time() + 1e9}],
    ids=["life", "count", "wait"],
)
async def test_a_snapshot_that_would_keep_a_run_from_ending_is_replaced(
    service: RunsUnderTest, said: dict[str, Any]
) -> None:
    run_id = await service.submit()
    await forge(service, run_id, **said)

    async def is_as_it_was() -> bool:
        found = await service.readable(run_id)
        return found is not None and (found.reopened, found.attempt, found.not_before) == (0, 0, None)

    await eventually(is_as_it_was, within=60, what="the snapshot made anew")
    await service.claim(run_id)
    await service.change(run_id, lambda s: s.finish(RunStatus.COMPLETED, now=time.time()))
    # Past all that a lost store may have known, and no farther.
    assert (await service.until_listed(run_id, status="COMPLETED"))["attempt"] < 100


async def test_an_ended_run_stays_ended_and_is_kept_whatever_its_snapshot_says(service: RunsUnderTest) -> None:
    run_id, other = await service.submit(), await service.submit()
    await service.claim(run_id)
    # As if it had ended long ago: it would leave the ledger at once.
    await service.change(run_id, lambda s: s.finish(RunStatus.COMPLETED, now=1.0))
    await service.until_listed(run_id, status="COMPLETED")
    await forge(service, run_id, status=RunStatus.PENDING, reopened=1, worker_id=None)
    # Under the key of one run, about another.
    await service.runs.put("somewhere", (await service.snapshot(other)).model_copy(
        update={"status": RunStatus.FAILED, "attempt": 1}
    ).encode())  # fmt: skip
    await service.claim(other)
    await service.until_listed(other, status="RUNNING")
    assert (await service.listed(run_id))["status"] == "COMPLETED"


async def ended_run(service: RunsUnderTest) -> str:
    run_id = await service.submit()
    await service.claim(run_id)
    await service.change(run_id, lambda s: s.finish(RunStatus.COMPLETED, now=time.time()))
    await service.until_listed(run_id, status="COMPLETED")
    return run_id


async def until_gone(service: RunsUnderTest, run_id: str) -> None:
    async def is_gone() -> bool:
        return await service.runs.get(run_id) is None

    await eventually(is_gone, within=60, what="KV letting go of the false snapshot")
    assert (await service.client.get(f"/runs/{run_id}")).json()["status"] == "COMPLETED"


@pytest.mark.parametrize(
    "said",
    [{"status": RunStatus.FAILED}, {"status": RunStatus.RUNNING}, {"status": RunStatus.PENDING, "attempt": 0}],
    ids=["end", "under way", "not begun"],
)
async def test_a_snapshot_over_an_end_leaves_kv_at_once(service: RunsUnderTest, said: dict[str, Any]) -> None:
    run_id = await ended_run(service)
    await forge(service, run_id, **said)
    await until_gone(service, run_id)


async def test_a_snapshot_of_a_run_that_kv_had_let_go_of_leaves_too(
    nats_server: NatsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ingest, "_FIRST_SNAPSHOT_SECONDS", 0.0)
    async with runs_running(runs_settings(nats_server, tmp_path, runs_kv_retention_sec=0.1)) as service:
        run_id = await ended_run(service)
        await eventually(lambda: service.rows("SELECT 1 FROM runs WHERE kv_released = 1"), what="the run released")
        ended = RunSnapshot.decode((service.rows("SELECT snapshot FROM run_documents"))[0].snapshot.encode())
        first = ended.model_copy(update={"status": RunStatus.PENDING, "attempt": 0})
        await service.runs.create(run_id, first.encode())
        await until_gone(service, run_id)


async def test_whatever_was_written_over_an_end_leaves_kv_with_it(nats_server: NatsServer, tmp_path: Path) -> None:
    async with runs_running(runs_settings(nats_server, tmp_path, runs_kv_retention_sec=1.0)) as service:
        run_id = await ended_run(service)
        await service.runs.put(run_id, b"garbage")
        await until_gone(service, run_id)


async def test_nothing_is_sent_to_a_subject_that_is_no_answer_to_the_runs_own_job(service: RunsUnderTest) -> None:
    run_id = await service.submit()
    heard: list[str] = []

    async def hear(message: Any) -> None:
        heard.append(message.subject)

    await service.link.client.subscribe("pyoco.control.victim", cb=hear)
    await service.claim(run_id, ack_subject="pyoco.control.victim")

    async def is_taken_back() -> bool:
        found = await service.readable(run_id)
        return found is not None and found.interruptions == 1

    await eventually(is_taken_back, within=60, what="the run taken from its lost holder")
    await service.link.client.flush()
    assert heard == []


async def test_a_forged_letter_neither_keeps_the_true_one_away_nor_says_why_a_run_failed(
    service: RunsUnderTest,
) -> None:
    run_id = await service.submit(timeout_sec=0.5)
    letter_id = dead_letter_id(run_id, reopened=0, attempt=0, reason="deadline_exceeded")
    headers = {NATS_MSG_ID: letter_id, DEAD_LETTER_ID: letter_id}
    forged = DeadLetter(timestamp=1.0, reason="execution_error", error="KeyError: forged", run_id=run_id).encode()
    # A worker of another queue, before the run has failed; one of its own queue, after it.
    await service.link.publish(WireNames().dlq_subject("probe"), forged, headers)
    await service.until_listed(run_id, status="FAILED")

    async def letters() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = (await service.client.get("/dlq", params={"run_id": run_id})).json()["items"]
        return found

    await eventually(letters, within=20, what="the true letter")
    await service.link.publish(WireNames().dlq_subject("default"), forged)
    # The next life's letter would be taken for this one.
    ahead = {DEAD_LETTER_ID: dead_letter_id(run_id, reopened=1, attempt=1, reason="execution_error")}
    await service.link.publish(WireNames().dlq_subject("default"), forged, ahead)

    async def are_in() -> bool:
        info = await service.link.jetstream.consumer_info("PYOCO_DLQ", "pyoco_runs_dlq")
        return not info.num_ack_pending and not info.num_pending

    await eventually(are_in, within=20, what="all letters taken in")
    found = await letters()
    assert [letter["reason"] for letter in found] == ["deadline_exceeded"] * 2
    assert all("deadline" in letter["error"] for letter in found)
    answer = await service.client.post(f"/dlq/{found[-1]['id']}/requeue")
    assert answer.status_code == 200, answer.text


async def test_no_delivery_of_another_run_is_answered_while_a_run_has_no_job_of_its_own(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    """A run that waits for its time: nobody knows yet where its job will lie."""
    settings = runs_settings(nats_server, tmp_path, consumer_ack_wait_sec=120)
    async with runs_running(settings) as service:
        await ensure_consumer(
            service.link.jetstream, "PYOCO_WORK", work_consumer_config(settings, settings, "default")
        )
        subscription = await service.link.jetstream.pull_subscribe_bind("pyoco_workers_default", "PYOCO_WORK")
        victim, scheduled = await service.submit(), await service.submit(delay_sec=3600)
        [message] = await subscription.fetch(1, timeout=30)
        await service.claim(scheduled, ack_subject=message.reply)
        await service.change(scheduled, lambda s: s.request_cancel(by=None, now=time.time()))
        # The sweeper ends it, and would ack the other's job.
        await service.until_listed(scheduled, status="CANCELLED")

        async def is_reported() -> bool:
            seen = Scrape((await service.client.get("/metrics")).text)
            return seen.value("pyoco_runs_repairs_total", reason="worker_lost") == 1

        await eventually(is_reported, within=30, what="the repair being over")
        assert await service.jobs() == [victim]


async def test_events_of_somebody_who_never_had_the_run_are_not_shown(service: RunsUnderTest) -> None:
    run_id = await service.submit()
    await service.claim(run_id)

    async def say(text: str, *, writer: str, attempt: int = 1, batch: int = 0) -> None:
        """The subject says who writes, and NATS sees to it that it is true; the message may say anything."""
        events = [RunEvent(at=time.time(), kind=EventKind.LOG, stream="stdout", text=text)]
        message = RunEvents(run_id=run_id, attempt=attempt, batch=batch, worker_id="w1", events=events)
        await service.link.publish(WireNames().events_subject(writer, run_id), message.encode())

    await say("forged\n", writer="w2")
    # The numbers of the true batches that follow would be repeats.
    await say("forged\n", writer="w2", batch=10**9)
    await say("forged\n", writer="w1", attempt=2)
    await say("said\n", writer="w1")
    assert (await service.client.get(f"/runs/{run_id}/logs")).text == "said\n"
    page = (await service.client.get(f"/runs/{run_id}/events")).json()
    assert ([event["text"] for event in page["events"]], page["missing_batches"]) == (["said\n"], 0)


def test_times_that_are_no_numbers_and_counts_without_bounds_are_no_snapshot() -> None:
    good = RunSnapshot(run_id="r", flow_name="f", status=RunStatus.RUNNING, heartbeat_at=1.0, updated_at=1.0)
    for bad in ('"updated_at":NaN', '"heartbeat_at":Infinity', '"attempt":4294967296', '"reopened":-1'):
        name = bad.partition(":")[0]
        text = good.encode().decode().replace(f"{name}:{'1.0' if '_at' in name else '0'}", bad)
        assert bad in text
        with pytest.raises(ValueError, match=name.strip('"')):
            RunSnapshot.decode(text.encode())


async def test_a_relay_gets_over_what_is_no_snapshot(service: RunsUnderTest) -> None:
    """Else one run's garbage would hold up whatever is due besides."""
    run_id = await service.submit(delay_sec=1.0)
    await service.runs.put(run_id, b"garbage")

    async def is_queued() -> bool:
        return run_id in await service.jobs()

    async def is_replaced() -> bool:
        there = await service.readable(run_id)
        return there is not None and there.status is RunStatus.PENDING

    await eventually(is_queued, within=60, what="the job sent")
    # The first job is in flight together with its snapshot.
    await eventually(is_replaced, within=30, what="the snapshot made anew")


async def test_garbage_under_an_overdue_run_ends_it_and_keeps_no_other_run_from_its_repair(
    service: RunsUnderTest,
) -> None:
    held = await service.submit()
    overdue = [await service.submit(timeout_sec=1, tag="gpu") for _ in range(3)]
    await service.runs.put(overdue[0], b"garbage")
    await service.runs.put(overdue[1], (await service.snapshot(held)).encode())
    await forge(service, overdue[2], **FORGED)
    for run_id in overdue:
        ended = await service.until_listed(run_id, status="FAILED")
        assert ended["reason"] == "deadline_exceeded"
    # Garbage comes again at every round, and none of them stops.
    await service.claim(held)

    async def is_taken_back() -> bool:
        found = await service.found(held)
        return found is not None and found.interruptions == 1

    await eventually(is_taken_back, within=60, what="the run taken from its lost holder")
    decided = service.rows("SELECT run_id FROM decisions WHERE kind = 'expire'")
    assert sorted(row.run_id for row in decided) == sorted(overdue)
    info = await service.link.jetstream.stream_info("PYOCO_DLQ", subjects_filter="pyoco.dlq.>")
    assert info.state.subjects == {"pyoco.dlq.gpu": 3}
