"""Retries, schedules, deadlines, exhausted deliveries, retention: what the runs service does without being asked."""

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from nats.js import api
from sqlalchemy import text

from fleet_contracts.dead_letter import DeadLetter
from fleet_contracts.job import Job
from fleet_contracts.snapshot import RunSnapshot
from fleet_contracts.status import RunStatus, WorkerState
from fleet_contracts.wheel import WheelInUse
from fleet_contracts.worker_record import WorkerRecord
from fleet_kit.nats.link import NatsLink
from fleet_kit.nats.messages import stored_message
from fleet_kit.nats.resources import ensure_consumer
from fleet_kit.nats.stores import kv
from fleet_runs_api.accept import acceptance
from fleet_runs_api.dead_letters import reopening
from fleet_runs_api.dead_letters.reopening import NotReopened, Reopening
from fleet_runs_api.fold import recording
from fleet_runs_api.fold.recording import Observation
from fleet_runs_api.ledger.documents import NewRun
from fleet_runs_api.ledger.sql.database import Database
from fleet_testkit.buckets import Bucket
from fleet_testkit.nats_server import NatsServer
from fleet_testkit.scrapes import Scrape
from fleet_testkit.waiting import eventually, wait_until

from .conftest import RunsUnderTest, accepting, runs_running, runs_settings, writing


async def shown(service: RunsUnderTest, run_id: str) -> dict[str, Any]:
    answer = await service.client.get(f"/runs/{run_id}")
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


async def take_job(service: RunsUnderTest) -> None:
    """Take all jobs off the queue, as workers do that have dealt with them."""
    await service.link.jetstream.purge_stream("PYOCO_WORK")


async def fail_attempt(service: RunsUnderTest, run_id: str, *, delay: float) -> None:
    await service.claim(run_id)
    await take_job(service)
    await service.change(
        run_id,
        lambda s: s.retry_later(
            now=time.time(), not_before=time.time() + delay, error="ValueError: x", reason="execution_error"
        ),
    )


async def dead_letters(service: RunsUnderTest) -> list[DeadLetter]:
    state = (await service.link.stream_info("PYOCO_DLQ")).state
    found = [
        await stored_message(service.link, "PYOCO_DLQ", sequence)
        for sequence in range(max(state.first_seq, 1), state.last_seq + 1)
    ]
    return [DeadLetter.decode(message.data) for message in found if message is not None]


async def claim_with(service: RunsUnderTest, run_id: str, *wheels: WheelInUse) -> None:
    await service.change(
        run_id,
        lambda s: s.claim(
            worker_id="w1", worker_instance_id="i1", ack_subject=None, now=time.time(), wheels=list(wheels)
        ),
    )


# Retries -----------------------------------------------------------------------------------------


async def test_a_failed_attempt_is_queued_again_when_its_time_has_come(service: RunsUnderTest) -> None:
    run_id = await service.submit(retry={"max_attempts": 3})
    await fail_attempt(service, run_id, delay=2.0)
    failed_at = time.time()
    waiting = await shown(service, run_id)
    assert (waiting["status"], waiting["waiting_reason"]) == ("PENDING", "retry")
    assert "failed once" in waiting["waiting_detail"]
    assert await service.jobs() == []
    assert await eventually(service.jobs, within=30) == [run_id]
    assert 1.8 < time.time() - failed_at < 20
    assert (await service.snapshot(run_id)).attempt == 1


async def test_every_attempt_and_decision_is_recorded(service: RunsUnderTest) -> None:
    run_id = await service.submit(retry={"max_attempts": 3})
    await fail_attempt(service, run_id, delay=0.01)
    await eventually(service.jobs)
    await service.claim(run_id, worker_id="w2")
    await take_job(service)
    await service.change(run_id, lambda s: s.hand_back(now=time.time(), interrupted=True))
    await eventually(service.jobs, within=20, what="the lost job being queued again")
    await service.claim(run_id, worker_id="w3")
    await service.change(run_id, lambda s: s.finish(RunStatus.COMPLETED, now=time.time()))
    await service.until_listed(run_id, status="COMPLETED", attempt=3)
    body = (await service.client.get(f"/runs/{run_id}/attempts")).json()
    assert (body["status"], body["max_attempts"], body["failures"]) == ("COMPLETED", 3, 1)
    assert [(a["attempt"], a["outcome"], a["worker_id"]) for a in body["attempts"]] == [
        (1, "failed", "w1"),
        (2, "interrupted", "w2"),
        (3, "completed", "w3"),
    ]
    assert body["attempts"][0]["error"] == "ValueError: x"
    assert all(a["started_at"] <= a["ended_at"] for a in body["attempts"])
    kinds = [d["kind"] for d in body["decisions"]]
    assert kinds == ["retry", "hand_over", "redispatch"]
    assert "failure 1 of 3 allowed: ValueError: x" in body["decisions"][0]["reason"]


async def test_every_attempt_shows_the_wheels_that_it_ran_with(service: RunsUnderTest) -> None:
    old = WheelInUse(name="acme-1.0-py3-none-any.whl", sha256_hex="6f" * 32)
    new = WheelInUse(name="acme-2.0-py3-none-any.whl", sha256_hex="70" * 32)
    run_id = await service.submit()

    async def attempts() -> list[list[dict[str, Any]]]:
        body = (await service.client.get(f"/runs/{run_id}/attempts")).json()
        return [attempt["wheels"] for attempt in body["attempts"]]

    for wheels in ([old], []):
        await claim_with(service, run_id, *wheels)
        await service.change(run_id, lambda s: s.hand_back(now=time.time(), interrupted=True))
    await claim_with(service, run_id, new)
    expected = [[old.model_dump()], [], [new.model_dump()]]
    assert await attempts() == expected, "while the run goes on"
    # A snapshot that is short of room forgets them; the ledger does not.
    await service.until_listed(run_id, status="RUNNING", attempt=3)
    await service.change(
        run_id,
        lambda s: s.model_copy(
            update={"earlier_attempts": [a.model_copy(update={"wheels": []}) for a in s.earlier_attempts]}
        ).finish(RunStatus.COMPLETED, now=time.time()),
    )
    await service.until_listed(run_id, status="COMPLETED")
    assert await attempts() == expected, "after its end"


async def test_retries_that_are_used_up_are_a_decision_too(service: RunsUnderTest) -> None:
    run_id = await service.submit(retry={"max_attempts": 2})
    await fail_attempt(service, run_id, delay=0.01)
    await eventually(service.jobs)
    await service.claim(run_id)
    await service.change(
        run_id,
        lambda s: s.finish(RunStatus.FAILED, now=time.time(), error="ValueError: y", reason="execution_error"),
    )
    await service.until_listed(run_id, status="FAILED")
    decisions = (await service.client.get(f"/runs/{run_id}/attempts")).json()["decisions"]
    assert [d["kind"] for d in decisions] == ["retry", "give_up"]
    assert "failure 2 of 2 allowed: ValueError: y" in decisions[1]["reason"]


@pytest.mark.own_nats
async def test_a_retry_outlives_the_loss_of_the_nats_store(service: RunsUnderTest, nats_server: NatsServer) -> None:
    run_id = await service.submit(retry={"max_attempts": 3})
    await fail_attempt(service, run_id, delay=2)
    await eventually(lambda: service.rows("SELECT * FROM runs WHERE failures = 1"))
    nats_server.kill()
    nats_server.wipe()
    nats_server.start()
    assert await eventually(service.jobs, within=30) == [run_id]
    snapshot = await service.snapshot(run_id)
    assert (snapshot.attempt, snapshot.failures, len(snapshot.earlier_attempts)) == (1, 1, 1)


async def test_a_retry_is_what_a_worker_states_and_not_a_count_that_has_risen(service: RunsUnderTest) -> None:
    counted, stated = await service.submit(retry={"max_attempts": 3}), await service.submit(retry={"max_attempts": 3})
    for run_id in (counted, stated):
        await service.claim(run_id)
        await take_job(service)
    await service.change(
        counted, lambda s: s.hand_back(now=time.time(), interrupted=False).model_copy(update={"failures": 1})
    )
    await service.change(
        stated, lambda s: s.retry_later(now=time.time(), not_before=time.time(), error="x", reason="execution_error")
    )
    dispatches = "SELECT dispatch FROM runs WHERE run_id = '{}' AND status = 'PENDING' AND attempt = 1"
    await eventually(lambda: service.rows(dispatches.format(stated)) == [(2,)], what="the retry sent")
    await eventually(lambda: service.rows(dispatches.format(counted)) == [(1,)], what="the other run handed back")


async def test_a_run_that_waits_for_its_retry_can_be_cancelled(service: RunsUnderTest) -> None:
    run_id = await service.submit(retry={"max_attempts": 3})
    await fail_attempt(service, run_id, delay=600)
    await eventually(lambda: service.rows("SELECT * FROM runs WHERE failures = 1"))
    assert (await service.client.post(f"/runs/{run_id}/cancel")).json()["status"] == "CANCELLING"
    await service.until_listed(run_id, status="CANCELLED")


async def test_a_tag_may_have_a_retry_rule_of_its_own(nats_server: NatsServer, tmp_path: Path) -> None:
    settings = runs_settings(nats_server, tmp_path, retry_defaults={"flaky": {"max_attempts": 5}})
    async with runs_running(settings) as service:
        flaky = await service.snapshot(await service.submit(tag="flaky"))
        asked = await service.snapshot(await service.submit(tag="flaky", retry={"max_attempts": 2}))
        plain = await service.snapshot(await service.submit())
    assert flaky.retry is not None
    assert asked.retry is not None
    assert (flaky.retry.max_attempts, asked.retry.max_attempts, plain.retry) == (5, 2, None)


@pytest.mark.parametrize(
    "retry",
    [
        {"max_attempts": 0},
        {"max_attempts": 101},
        {"base_seconds": -1},
        {"jitter": 2},
        {"attempts": 3},
        {"max_attempts": "x"},
    ],
)
async def test_a_retry_rule_that_makes_no_sense_is_refused(service: RunsUnderTest, retry: dict[str, Any]) -> None:
    answer = await service.client.post("/runs", json={"flow_name": "hello", "retry": retry})
    assert answer.status_code == 422
    assert "retry" in answer.json()["detail"]


# Schedules ---------------------------------------------------------------------------------------


async def test_a_run_with_a_delay_is_queued_when_its_time_has_come(service: RunsUnderTest) -> None:
    began = time.time()
    run_id = await service.submit(delay_sec=2.0)
    answered = time.time()
    waiting = await shown(service, run_id)
    assert (waiting["status"], waiting["waiting_reason"]) == ("PENDING", "schedule")
    assert began + 2 <= waiting["not_before"] <= answered + 2
    assert await service.jobs() == []
    assert await eventually(service.jobs, within=30) == [run_id]
    assert time.time() - began >= 1.95


async def test_a_scheduled_run_outlives_a_restart_and_is_not_sent_early(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    settings = runs_settings(nats_server, tmp_path)
    async with runs_running(settings) as service:
        soon = await service.submit(delay_sec=1.5)
        later = await service.submit(not_before=time.time() + 3600)
    async with runs_running(settings) as service:
        assert await eventually(service.jobs, within=30) == [soon]
        assert (await shown(service, later))["waiting_reason"] == "schedule"
        assert await service.jobs() == [soon]


async def test_a_scheduled_run_can_be_cancelled_even_if_kv_has_lost_it(service: RunsUnderTest) -> None:
    run_id = await service.submit(delay_sec=3600)
    await service.runs.delete(run_id)
    assert (await service.client.post(f"/runs/{run_id}/cancel")).json()["status"] == "CANCELLING"
    await service.until_listed(run_id, status="CANCELLED")


async def test_a_moment_in_the_past_means_now(service: RunsUnderTest) -> None:
    run_id = await service.submit(not_before=1.0)
    assert await eventually(service.jobs) == [run_id]
    assert (await service.snapshot(run_id)).not_before is None


# Deadlines ---------------------------------------------------------------------------------------


async def test_a_run_that_nobody_takes_fails_at_its_deadline(service: RunsUnderTest) -> None:
    run_id = await service.submit(timeout_sec=0.5)
    ended = await service.until_listed(run_id, status="FAILED")
    assert ended["reason"] == "deadline_exceeded"
    assert "deadline" in ended["error"]
    (letter,) = await eventually(lambda: dead_letters(service))
    assert (letter.run_id, letter.reason) == (run_id, "deadline_exceeded")
    decisions = (await service.client.get(f"/runs/{run_id}/attempts")).json()["decisions"]
    assert [d["kind"] for d in decisions] == ["expire"]

    async def gone() -> bool:
        return await service.jobs() == []

    await eventually(gone, what="the job leaving the queue")


async def test_a_job_stays_until_the_letter_of_its_run_is_out(service: RunsUnderTest) -> None:
    """The worker that gets the job publishes a missing letter."""
    await service.link.jetstream.delete_stream("PYOCO_DLQ")
    run_id = await service.submit(timeout_sec=0.5)
    await service.until_listed(run_id, status="FAILED")

    async def is_counted() -> bool:
        seen = Scrape((await service.client.get("/metrics")).text)
        return seen.value("pyoco_runs_repairs_total", reason="deadline_exceeded") == 1

    await eventually(is_counted, what="the end being counted")
    assert await service.jobs() == [run_id]


async def test_a_holder_that_goes_on_after_the_deadline_is_ended_by_the_service(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    async with runs_running(runs_settings(nats_server, tmp_path, run_lost_after_sec=60)) as service:
        run_id = await service.submit(timeout_sec=0.5)
        revision = await service.claim(run_id)
        ended = await service.until_listed(run_id, status="FAILED")
        assert ended["end_time"] - ended["start_time"] > 4  # it was left to its holder for a while
        assert (await service.runs.get(run_id)).revision > revision  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "times",
    [
        {"deadline_at": 1.0},
        {"deadline_at": 99999999999.0},
        {"delay_sec": 10, "deadline_at": time.time() + 5},
        {"timeout_sec": 0},
        {"timeout_sec": -1},
        {"delay_sec": -1},
        {"delay_sec": 1, "not_before": 5},
        {"timeout_sec": 1, "deadline_at": 9999999999},
        {"not_before": "tomorrow"},
    ],
)
async def test_times_that_make_no_sense_are_refused(service: RunsUnderTest, times: dict[str, Any]) -> None:
    answer = await service.client.post("/runs", json={"flow_name": "hello", **times})
    assert answer.status_code == 422, answer.text
    assert answer.json()["error"]["meta"]["err_id"] == "ERR-PYOCO-0002"
    assert service.rows("SELECT * FROM runs") == []


# Why it waits ------------------------------------------------------------------------------------


async def test_a_run_without_a_worker_says_so_and_what_to_do(service: RunsUnderTest) -> None:
    waiting = await shown(service, await service.submit(tag="gpu"))
    assert waiting["waiting_reason"] == "no_worker"
    assert waiting["waiting_detail"] == "no live worker serves tag gpu; start one with: pyoco-worker --tags gpu"


async def test_workers_that_are_draining_do_not_count_as_able_to_take_a_run(service: RunsUnderTest) -> None:
    workers = Bucket(service.link, "pyoco_workers")
    run_id = await service.submit(tag="gpu")

    async def put_worker(worker_id: str, **fields: Any) -> None:
        now = time.time()
        record = WorkerRecord(
            worker_id=worker_id,
            instance_id="i",
            state=WorkerState.IDLE,
            last_seen_at=now,
            last_heartbeat_at=now,
            tags=["gpu"],
            slots=2,
        )
        await workers.put(worker_id, record.model_copy(update=fields).encode())

    async def wait_for(reason: str, detail: str) -> None:
        async def is_reported() -> bool:
            run = await shown(service, run_id)
            return (run["waiting_reason"], run["waiting_detail"]) == (reason, detail)

        await eventually(is_reported, what=detail)

    await put_worker("w1", draining=True, current_run_ids=["r1"])
    remedy = "resume one (POST /workers/<id>/resume), or start another with: pyoco-worker --tags gpu"
    await wait_for("no_worker", f"all workers of tag gpu are draining; {remedy}")
    await put_worker("w2", current_run_ids=["r2", "r3"])
    await wait_for("queue", "all workers of tag gpu are busy; it is in their queue")
    await put_worker("w1")
    await wait_for("queue", "it is in the queue of tag gpu and about to be taken")


async def test_a_run_that_began_waits_for_nothing(service: RunsUnderTest) -> None:
    run_id = await service.submit()
    await service.claim(run_id)
    assert "waiting_reason" not in await shown(service, run_id)


# Deliveries --------------------------------------------------------------------------------------


async def make_consumer(service: RunsUnderTest, *, max_deliver: int) -> api.ConsumerInfo:
    return await ensure_consumer(
        service.link.jetstream,
        "PYOCO_WORK",
        api.ConsumerConfig(
            durable_name="pyoco_workers_default",
            filter_subject="pyoco.work.default",
            ack_policy=api.AckPolicy.EXPLICIT,
            ack_wait=0.5,
            max_deliver=max_deliver,
        ),
    )


async def deliver(service: RunsUnderTest, times: int) -> None:
    """Let the job be delivered so often to somebody who hands it back, and asked for once more."""
    subscription = await service.link.jetstream.pull_subscribe_bind("pyoco_workers_default", "PYOCO_WORK")
    for _ in range(times):
        (message,) = await subscription.fetch(1, timeout=30)
        await message.nak()
    with pytest.raises(TimeoutError):
        await subscription.fetch(1, timeout=1)  # the server notices when somebody asks
    await subscription.unsubscribe()


async def test_a_job_that_was_delivered_as_often_as_allowed_ends_its_run_with_a_dead_letter(
    service: RunsUnderTest,
) -> None:
    await make_consumer(service, max_deliver=3)
    run_id = await service.submit()
    await deliver(service, 3)
    ended = await service.until_listed(run_id, status="FAILED")
    assert ended["reason"] == "deliveries_exhausted"
    assert "3 times" in ended["error"]
    (letter,) = await eventually(lambda: dead_letters(service))
    assert (letter.run_id, letter.reason) == (run_id, "deliveries_exhausted")

    async def gone() -> bool:
        return await service.jobs() == []

    await eventually(gone, what="the job leaving the queue")


async def test_a_repeated_job_that_nobody_gets_any_more_does_not_end_a_run_that_waits_for_its_own(
    service: RunsUnderTest,
) -> None:
    await make_consumer(service, max_deliver=1)
    run_id = await service.submit(delay_sec=3)
    job = Job(run_id=run_id, flow_name="hello", tag="default", submitted_at=time.time())
    await service.link.publish("pyoco.work.default", job.encode())
    await deliver(service, 1)
    await eventually(lambda: service.rows("SELECT * FROM outbox") == [], what="the run's own job queued")
    assert (await service.jobs()).count(run_id) == 2
    assert (await service.snapshot(run_id)).status is RunStatus.PENDING


async def test_exhausted_deliveries_that_nobody_reported_are_found_by_the_sweeper(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    settings = runs_settings(nats_server, tmp_path)
    async with runs_running(settings) as service:
        await make_consumer(service, max_deliver=1)
        run_id = await service.submit()
        await eventually(lambda: service.rows("SELECT * FROM outbox") == [])
    # While no runs service is there to hear it.
    async with RunsOutside(settings) as outside:
        await deliver(outside, 1)
    async with runs_running(settings) as service:
        ended = await service.until_listed(run_id, status="FAILED")
        assert ended["reason"] == "deliveries_exhausted"


class RunsOutside:
    """NATS alone, without the service."""

    def __init__(self, settings: Any) -> None:
        self._link = NatsLink(settings, name="outside")

    async def __aenter__(self) -> RunsUnderTest:
        await self._link.__aenter__()
        async with asyncio.timeout(30):
            await self._link.wait_ready()
        return RunsUnderTest(None, None, self._link, None)  # type: ignore[arg-type]

    async def __aexit__(self, *_: object) -> None:
        await self._link.__aexit__()


# Reopening ---------------------------------------------------------------------------------------


def test_only_a_failed_run_of_the_tenant_is_reopened(database: Database, new_run: NewRun) -> None:
    run_id = new_run.job.run_id
    running = RunSnapshot.pending(new_run.job, now=1.0).claim(
        worker_id="w1", worker_instance_id="i1", ack_subject=None, now=2.0
    )
    failed = running.finish(RunStatus.FAILED, now=3.0, error="ValueError: x", reason="execution_error")

    def reopen(tenant_id: str = "anonymous") -> Any:
        with writing(database) as transaction:
            (result,) = reopening.reopen(transaction, [Reopening(run_id, tenant_id, 20.0, 10.0, "somebody")])
        return result

    with writing(database) as transaction:
        acceptance.accept(transaction, [accepting(new_run)])
        recording.record(transaction, [[Observation(running, 5, running.encode().decode())]])
    assert reopen() == NotReopened(RunStatus.RUNNING)
    with writing(database) as transaction:
        recording.record(transaction, [[Observation(failed, 6, failed.encode().decode())]])
    assert reopen("acme") == NotReopened(None)
    reopened = reopen()
    assert (reopened.status, reopened.attempt, reopened.reopened) == (RunStatus.PENDING, 1, 1)
    assert reopen() == NotReopened(RunStatus.PENDING)
    # Old news of the end does not end it again.
    with writing(database) as transaction:
        assert recording.record(transaction, [[Observation(failed, 7, failed.encode().decode())]]) == [[]]


def test_a_run_whose_end_is_just_being_recorded_by_another_process_is_reopened(
    postgres_url: str, new_run: NewRun
) -> None:
    one, other = Database(postgres_url), Database(postgres_url)
    one.migrate()
    running = RunSnapshot.pending(new_run.job, now=1.0).claim(
        worker_id="w1", worker_instance_id="i1", ack_subject=None, now=2.0
    )
    failed = running.finish(RunStatus.FAILED, now=3.0, error="ValueError: x", reason="execution_error")
    wanted = Reopening(new_run.job.run_id, "anonymous", 10.0, 10.0, "somebody")

    def reopen() -> Any:
        with writing(other) as transaction:
            return reopening.reopen(transaction, [wanted])[0]

    def somebody_waits() -> bool:
        waiting = (
            "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
        )
        return bool(one.read(lambda connection: connection.execute(text(waiting)).scalar()))

    with writing(one) as transaction:
        acceptance.accept(transaction, [accepting(new_run)])
        recording.record(transaction, [[Observation(running, 5, running.encode().decode())]])
    with ThreadPoolExecutor(1) as threads:
        with writing(one) as transaction:
            recording.record(transaction, [[Observation(failed, 6, failed.encode().decode())]])
            reopened = threads.submit(reopen)
            wait_until(somebody_waits, what="the other process waiting for the run")
        assert reopened.result(timeout=60).reopened == 1
    one.dispose()
    other.dispose()


# Retention ---------------------------------------------------------------------------------------


async def test_an_ended_run_leaves_kv_in_time_and_stays_readable(nats_server: NatsServer, tmp_path: Path) -> None:
    async with runs_running(runs_settings(nats_server, tmp_path, runs_kv_retention_sec=0.5)) as service:
        run_id = await service.submit(params={"a": 1})
        waits = await service.submit()
        await service.claim(run_id)
        await service.change(run_id, lambda s: s.finish(RunStatus.COMPLETED, now=time.time(), result=42))

        async def released() -> bool:
            return await service.found(run_id) is None

        await eventually(released, within=30, what="KV letting go of the run")
        body = await shown(service, run_id)
        assert (body["status"], body["params"], body["result"]) == ("COMPLETED", {"a": 1}, 42)
        assert (await service.client.get(f"/runs/{run_id}/attempts")).json()["attempts"][0]["outcome"] == "completed"
        assert (await service.client.post(f"/runs/{run_id}/cancel")).json()["status"] == "COMPLETED"
        assert await service.found(waits) is not None
        state = (await service.link.stream_info("KV_pyoco_runs")).state
        assert state.messages == 1  # no marker is left behind


async def test_a_run_that_is_reopened_while_kv_lets_go_of_it_keeps_its_new_snapshot(
    nats_server: NatsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    erased = asyncio.Event()
    erase = kv.Bucket.erase

    async def reopen_first(runs: kv.Bucket, key: str, *, up_to: int) -> None:
        monkeypatch.setattr(kv.Bucket, "erase", erase)
        wanted = Reopening(key, "anonymous", time.time(), time.time(), "somebody")
        reopened = await service.app.state.service._commits.write(reopening.reopen, wanted)
        await service.app.state.service._relay._runs.announce(reopened)
        await erase(runs, key, up_to=up_to)
        erased.set()

    monkeypatch.setattr(kv.Bucket, "erase", reopen_first)
    async with runs_running(runs_settings(nats_server, tmp_path, runs_kv_retention_sec=0.1)) as service:
        run_id = await service.submit()
        await service.claim(run_id)
        await service.change(run_id, lambda s: s.finish(RunStatus.FAILED, now=time.time(), reason="execution_error"))
        async with asyncio.timeout(30):
            await erased.wait()
        found = await service.found(run_id)
        assert found is not None
        assert (found.status, found.reopened) == (RunStatus.PENDING, 1)


async def test_runs_that_ended_long_ago_leave_the_ledger_with_all_that_belongs_to_them(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    settings = runs_settings(nats_server, tmp_path, runs_kv_retention_sec=0.3, runs_retention_sec=0.6)
    async with runs_running(settings) as service:
        ids = [await service.submit() for _ in range(5)]
        waits = await service.submit()
        for run_id in ids:
            await fail_attempt(service, run_id, delay=0)
            await service.claim(run_id)
            await service.change(run_id, lambda s: s.finish(RunStatus.COMPLETED, now=time.time()))
        await eventually(
            lambda: service.rows("SELECT run_id FROM runs") == [(waits,)], within=20, what="the ledger forgetting"
        )
        for table in ("run_documents", "attempts", "decisions"):
            left = {row.run_id for row in service.rows(f"SELECT run_id FROM {table}")}
            assert left <= {waits}, table
        assert (await service.client.get(f"/runs/{ids[0]}")).status_code == 404
        assert [tuple(r) for r in service.rows("SELECT status, total FROM run_counts WHERE total <> 0")] == [
            ("PENDING", 1)
        ]
        flows = service.rows("SELECT status, total FROM flow_counts WHERE total <> 0")
        assert [tuple(r) for r in flows] == [("PENDING", 1)]
