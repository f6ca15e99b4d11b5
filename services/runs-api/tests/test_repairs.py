"""What the sweeper repairs: wiped stores, lost jobs, vanished workers."""

import asyncio
import time
from pathlib import Path
from typing import Any

import nats.errors
import pytest

from fleet_contracts.job import Job
from fleet_contracts.snapshot import RunSnapshot
from fleet_contracts.status import RunStatus, WorkerState
from fleet_contracts.worker_record import WorkerRecord
from fleet_kit.nats.link import HeartbeatJetStream, NatsLink
from fleet_kit.nats.resources import ensure_bucket, ensure_consumer
from fleet_kit.nats.streams import work_consumer_config
from fleet_runs_api.settings import RunsSettings
from fleet_testkit.buckets import Bucket
from fleet_testkit.nats_server import NatsServer
from fleet_testkit.scrapes import Scrape
from fleet_testkit.waiting import eventually

from .conftest import RunsUnderTest, runs_running, runs_settings

pytestmark = pytest.mark.long


async def repairs(service: RunsUnderTest, reason: str) -> float:
    for line in (await service.client.get("/metrics")).text.splitlines():
        if line.startswith(f'pyoco_runs_repairs_total{{reason="{reason}"}}'):
            return float(line.split()[-1])
    return 0.0


@pytest.mark.own_nats
async def test_queued_runs_survive_the_loss_of_the_nats_store(
    service: RunsUnderTest, nats_server: NatsServer
) -> None:
    ids = [await service.submit(params={"i": i}) for i in range(250)]
    await eventually(lambda: service.rows("SELECT * FROM outbox") == [])
    nats_server.kill()
    nats_server.wipe()
    nats_server.start()

    async def all_queued_again() -> bool:
        return sorted(await service.jobs()) == sorted(ids)

    await eventually(all_queued_again, within=30, what="every run being queued again")
    snapshot = await service.snapshot(ids[7])
    assert (snapshot.status, snapshot.params) == (RunStatus.PENDING, {"i": 7})
    assert await repairs(service, "snapshot_lost") == 250


@pytest.mark.own_nats
async def test_a_store_wiped_while_everything_was_down_is_noticed_too(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    settings = runs_settings(nats_server, tmp_path, run_check_interval_sec=600)
    async with runs_running(settings) as service:
        run_id = await service.submit()
        await eventually(lambda: service.rows("SELECT * FROM outbox") == [])
    nats_server.kill()
    nats_server.wipe()
    nats_server.start()
    async with runs_running(settings) as service:
        assert await eventually(service.jobs) == [run_id]


@pytest.mark.own_nats
async def test_a_running_run_keeps_its_attempts_after_a_wipe(service: RunsUnderTest, nats_server: NatsServer) -> None:
    run_id = await service.submit()
    await service.claim(run_id)
    await service.until_listed(run_id, status="RUNNING", attempt=1)
    nats_server.kill()
    nats_server.wipe()
    nats_server.start()
    snapshot = await eventually(lambda: service.found(run_id), within=20)
    assert snapshot is not None
    assert (snapshot.status, snapshot.attempt) == (RunStatus.PENDING, 1)
    assert [record.attempt for record in snapshot.earlier_attempts] == [1]
    await service.claim(run_id)
    await service.until_listed(run_id, status="RUNNING")
    assert (await service.snapshot(run_id)).attempt > 1


async def test_an_attempt_that_is_reported_after_the_end_is_listed_and_changes_nothing_else(
    service: RunsUnderTest,
) -> None:
    run_id = await service.submit(retry={"max_attempts": 2})
    lost = RunSnapshot.pending(Job(run_id=run_id, flow_name="hello", tag="default", submitted_at=1.0), now=1.0).claim(
        worker_id="w0", worker_instance_id="i0", ack_subject=None, now=2.0
    )
    await service.change(run_id, lambda s: s.skip_attempts(20))
    await service.claim(run_id)
    await service.change(run_id, lambda s: s.finish(RunStatus.FAILED, now=time.time(), error="ValueError: no"))
    before = await service.until_listed(run_id, status="FAILED")
    await service.change(run_id, lambda s: s.with_lost_attempt(lost, now=time.time()))

    async def attempts() -> dict[str, Any]:
        answer: dict[str, Any] = (await service.client.get(f"/runs/{run_id}/attempts")).json()
        return answer

    async def is_kept_by_the_ledger() -> bool:
        return await service.found(run_id) is None and len((await attempts())["attempts"]) == 2

    await eventually(is_kept_by_the_ledger, what="the lost attempt in the ledger")
    shown = await attempts()
    assert [(one["attempt"], one["worker_id"]) for one in shown["attempts"]] == [(1, "w0"), (21, "w1")]
    assert [decision["kind"] for decision in shown["decisions"]] == ["hand_over"]
    assert await service.listed(run_id) == before


@pytest.mark.own_nats
async def test_the_number_of_an_attempt_that_the_ledger_has_not_recorded_is_not_used_again(
    nats_server: NatsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Again and again: whatever was claimed before NATS lost its store, nobody claims under the same number."""
    deaf = asyncio.Event()

    async def hear_nothing(*_: object) -> None:
        await deaf.wait()

    numbers = []
    async with runs_running(runs_settings(nats_server, tmp_path, run_check_interval_sec=600)) as service:
        monkeypatch.setattr(service.app.state.service._ingest, "_fold", hear_nothing)
        run_id = await service.submit()
        await eventually(lambda: service.rows("SELECT * FROM outbox") == [])
        for _ in range(3):
            assert await eventually(lambda: service.found(run_id), within=30) is not None
            await service.claim(run_id)
            numbers.append((await service.snapshot(run_id)).attempt)
            await eventually(lambda: service.rows("SELECT * FROM outbox") == [])
            nats_server.kill()
            nats_server.wipe()
            nats_server.start()
        deaf.set()
    assert service.rows("SELECT attempt FROM runs") == [(0,)]
    assert len(set(numbers)) == 3, numbers
    assert numbers == sorted(numbers)


async def test_a_lost_job_of_a_waiting_run_is_queued_again(service: RunsUnderTest) -> None:
    run_id = await service.submit()
    await eventually(lambda: service.rows("SELECT * FROM outbox") == [])
    await service.link.jetstream.purge_stream("PYOCO_WORK")
    assert await eventually(service.jobs) == [run_id]
    assert await repairs(service, "job_lost") == 1


async def test_a_job_is_lost_also_where_something_else_lies_in_its_place(service: RunsUnderTest) -> None:
    run_id = await service.submit()
    await eventually(lambda: service.rows("SELECT * FROM outbox") == [])
    await service.link.jetstream.delete_stream("PYOCO_WORK")
    await service.link.jetstream.add_stream(name="PYOCO_WORK", subjects=["pyoco.work.>"], retention="workqueue")
    await service.link.publish("pyoco.work.default", b"[not a job")

    async def is_back() -> bool:
        return (await service.link.stream_info("PYOCO_WORK")).state.messages == 2

    await eventually(is_back, within=20, what="the job being sent again")
    assert await repairs(service, "job_lost") == 1
    assert (await service.snapshot(run_id)).status is RunStatus.PENDING


async def test_a_vanished_workers_run_is_revoked_and_its_job_delivered_again_at_once(
    service: RunsUnderTest, nats_server: NatsServer, tmp_path: Path
) -> None:
    settings: RunsSettings = runs_settings(nats_server, tmp_path)
    js = service.link.jetstream
    await ensure_consumer(js, "PYOCO_WORK", work_consumer_config(settings, settings, "default"))
    subscription = await js.pull_subscribe_bind("pyoco_workers_default", "PYOCO_WORK")
    run_id = await service.submit()
    [message] = await subscription.fetch(1, timeout=30)
    revision = await service.claim(run_id, ack_subject=message.reply)
    [again] = await subscription.fetch(1, timeout=30)
    assert again.metadata.num_delivered == 2
    snapshot = await service.snapshot(run_id)
    assert (snapshot.status, snapshot.attempt, snapshot.worker_id, snapshot.interruptions) == (
        RunStatus.PENDING,
        1,
        None,
        1,
    )
    entry = await service.runs.get(run_id)
    assert entry is not None
    assert entry.revision > revision
    await service.until_listed(run_id, status="PENDING", attempt=1)
    assert await repairs(service, "worker_lost") == 1


async def announce(service: RunsUnderTest, *, has: list[str]) -> None:
    """A worker of the default tag with one slot."""
    now = time.time()
    worker = WorkerRecord(
        worker_id="w1",
        instance_id="i1",
        state=WorkerState.RUNNING if has else WorkerState.IDLE,
        last_seen_at=now,
        last_heartbeat_at=now,
        tags=["default"],
        current_run_ids=has,
    )
    await Bucket(service.link, "pyoco_workers").put("w1", worker.encode())


async def test_a_delivery_that_no_claim_follows_is_handed_out_again(nats_server: NatsServer, tmp_path: Path) -> None:
    """AckWait is two minutes: JetStream itself would deliver neither of them again before the test gives up."""
    settings = runs_settings(nats_server, tmp_path, consumer_ack_wait_sec=120)
    async with runs_running(settings) as service:
        await announce(service, has=[])
        js = service.link.jetstream
        await ensure_consumer(js, "PYOCO_WORK", work_consumer_config(settings, settings, "default"))
        subscription = await js.pull_subscribe_bind("pyoco_workers_default", "PYOCO_WORK")
        claimed, unclaimed, queued = [await service.submit() for _ in range(3)]
        first, second = await subscription.fetch(2, timeout=30)
        await service.claim(claimed)

        async def keep_and_look() -> str | None:
            """The holder of the claimed run goes on; the other one is looked at."""
            await service.change(claimed, lambda s: s.model_copy(update={"heartbeat_at": time.time()}))
            item = await service.listed(unclaimed)
            shown = (await service.client.get(f"/runs/{unclaimed}")).json()
            assert item["status"] == "PENDING"
            return (
                shown["waiting_detail"] if shown["waiting_reason"] == item["waiting_reason"] == "delivery" else None
            )

        detail = await eventually(keep_and_look, within=60, what="the API showing that nobody claims it")
        assert detail is not None
        assert "handed out again" in detail

        async def times() -> float:
            await keep_and_look()
            return await repairs(service, "delivery_unclaimed")

        await eventually(lambda: times(), within=60, what="the job being given back")
        [again, third] = sorted(
            await subscription.fetch(2, timeout=30), key=lambda message: -message.metadata.num_delivered
        )
        assert (again.data, again.metadata.num_delivered) == (second.data, 2)
        assert (Job.decode(third.data).run_id, third.metadata.num_delivered) == (queued, 1)
        assert Job.decode(first.data).run_id == claimed
        assert (await service.listed(claimed))["waiting_reason"] is None


async def test_a_run_that_was_handed_back_while_all_workers_are_busy_waits_in_their_queue(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    async with runs_running(runs_settings(nats_server, tmp_path, consumer_ack_wait_sec=120)) as service:
        await announce(service, has=["another"])
        settings = runs_settings(nats_server, tmp_path)
        await ensure_consumer(
            service.link.jetstream, "PYOCO_WORK", work_consumer_config(settings, settings, "default")
        )
        subscription = await service.link.jetstream.pull_subscribe_bind("pyoco_workers_default", "PYOCO_WORK")
        run_id = await service.submit()
        [message] = await subscription.fetch(1, timeout=30)
        await message.nak()
        unclaimed = service.app.state.service._sweeper._unclaimed
        # By then it would have been given back, after 0.6 seconds.
        await eventually(lambda: unclaimed.has(run_id, "default"), within=30, what="the delivery being known")
        shown = [(await service.client.get(f"/runs/{run_id}")).json(), await service.listed(run_id)]
        for item in shown:
            assert (item["waiting_reason"], "busy" in item["waiting_detail"]) == ("queue", True)
        assert await repairs(service, "delivery_unclaimed") == 0
        await announce(service, has=[])
        await eventually(
            lambda: repairs(service, "delivery_unclaimed"), within=30, what="the job being given back at once"
        )


async def test_a_queue_that_cannot_be_looked_at_stops_no_other_repair(
    service: RunsUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    look = HeartbeatJetStream.consumer_info

    async def consumer_info(js: HeartbeatJetStream, stream: str, consumer: str) -> object:
        if consumer.endswith("_a_sick"):
            raise nats.errors.TimeoutError
        return await look(js, stream, consumer)

    monkeypatch.setattr(HeartbeatJetStream, "consumer_info", consumer_info)
    service.app.state.service._queues._made.update(("a_sick", "default"))
    await service.submit(tag="a_sick")
    run_id = await service.submit()
    await eventually(lambda: service.rows("SELECT * FROM outbox") == [])
    await service.link.jetstream.purge_stream("PYOCO_WORK", subject="pyoco.work.default")

    async def is_found() -> bool:
        return run_id in await service.jobs()

    await eventually(is_found, within=30, what="the lost job being queued again")
    begun = time.time()

    async def is_swept() -> bool:
        seen = Scrape((await service.client.get("/metrics")).text)
        return (seen.value("pyoco_sweep_last_success_timestamp_seconds") or 0.0) > begun

    await eventually(is_swept, within=30, what="a round being finished")


async def test_a_worker_that_keeps_writing_keeps_its_run(service: RunsUnderTest) -> None:
    run_id = await service.submit()
    await service.claim(run_id)
    until = time.monotonic() + 2.0

    async def kept_writing() -> bool:
        await service.change(run_id, lambda s: s.model_copy(update={"heartbeat_at": time.time()}))
        return time.monotonic() > until

    await eventually(kept_writing)
    assert (await service.snapshot(run_id)).worker_id == "w1"
    assert await repairs(service, "worker_lost") == 0


async def test_a_cancelled_run_of_a_vanished_worker_ends_cancelled(service: RunsUnderTest) -> None:
    run_id = await service.submit()
    await service.claim(run_id)
    await service.change(run_id, lambda s: s.request_cancel(by=None, now=time.time()))
    await service.until_listed(run_id, status="CANCELLED")
    assert (await service.snapshot(run_id)).status is RunStatus.CANCELLED


async def test_a_cancelled_run_that_nobody_holds_ends_without_a_worker(service: RunsUnderTest) -> None:
    run_id = await service.submit()
    # As if the process that recorded it had died right then, or its holder had stopped and handed it back.
    await service.change(run_id, lambda s: s.request_cancel(by=None, now=time.time()))
    await service.until_listed(run_id, status="CANCELLED")
    assert (await service.snapshot(run_id)).status is RunStatus.CANCELLED
    assert await repairs(service, "cancel_unfinished") == 1
    assert await repairs(service, "worker_lost") == 0


@pytest.mark.own_nats
async def test_an_end_that_was_written_after_a_wipe_reaches_the_ledger(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    settings = runs_settings(nats_server, tmp_path)
    async with runs_running(settings) as service:
        run_id = await service.submit()
        for _ in range(5):
            revision = await service.change(run_id, lambda s: s.model_copy(update={"status": RunStatus.RUNNING}))
        await eventually(lambda: service.rows(f"SELECT 1 FROM runs WHERE revision = {revision}") != [])
        running_run = await service.snapshot(run_id)
    nats_server.kill()
    nats_server.wipe()
    nats_server.start()
    # Somebody was faster than the sweeper; revisions have begun anew.
    async with NatsLink(settings, name="faster") as link:
        async with asyncio.timeout(30):
            await link.wait_ready()
        await ensure_bucket(link.jetstream, settings.runs_kv_bucket)
        ended = running_run.finish(RunStatus.CANCELLED, now=time.time())
        assert await Bucket(link, settings.runs_kv_bucket).create(run_id, ended.encode()) < revision
    async with runs_running(settings) as service:
        await service.until_listed(run_id, status="CANCELLED")


async def test_an_unreadable_snapshot_is_made_anew_and_hinders_no_other(service: RunsUnderTest) -> None:
    broken = await service.submit()
    await eventually(lambda: service.rows("SELECT * FROM outbox") == [])
    await service.runs.put(broken, b"not a snapshot")
    assert (await service.client.get(f"/runs/{broken}")).json()["status"] == "PENDING"
    snapshot = await eventually(lambda: service.readable(broken))
    assert snapshot is not None
    assert snapshot.status is RunStatus.PENDING
    await eventually(lambda: service.rows("SELECT * FROM outbox") == [])
    assert (await service.jobs()).count(broken) == 2
