"""Jobs whose flow the worker does not offer: it asks before the claim, and does as it is told."""

import signal
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest
from nats.aio.msg import Msg

from fleet_contracts.catalogue import WorkerCatalogue
from fleet_contracts.control import JOB_REFUSED, JOB_TAKEN, JOB_WANTED, Control, ControlKind
from fleet_contracts.declined import Declined, DeclinedAnswer, DeclinedDecision
from fleet_contracts.job import Job
from fleet_contracts.names import ack_subject
from fleet_contracts.snapshot import AttemptOutcome, RunSnapshot
from fleet_contracts.status import RunStatus
from fleet_kit.nats.resources import ensure_bucket
from fleet_testkit.buckets import Bucket
from fleet_testkit.nats_server import NatsServer
from fleet_testkit.waiting import eventually
from fleet_worker.job import declining
from fleet_worker.job.declining import Declining, DecliningPace, FlowNowhere
from fleet_worker.job.delivery import Delivery
from fleet_worker.job.disposition import DeclinedJob, HandedBack
from fleet_worker.pool.pool import RunnerPool
from fleet_worker.settings import WorkerSettings

from .conftest import Desk, WorkerProcess

StartWorker = Callable[..., WorkerProcess]

NOWHERE = DeclinedAnswer(decision=DeclinedDecision.NOT_FOUND, error="it is nowhere")
LATER = DeclinedAnswer(decision=DeclinedDecision.LATER, retry_seconds=0.05)
HANDED_OVER = DeclinedAnswer(decision=DeclinedDecision.HANDED_OVER)


def offer_of(job: Job, reply: str) -> Declined:
    """The request of another worker, as it is offered."""
    return Declined(
        run_id=job.run_id,
        flow_name=job.flow_name,
        tag=job.tag,
        ack_subject=reply,
        num_delivered=1,
        reason="it is offered",
        is_wanted=True,
    )


class Office:
    """Plays the part of runs-api that decides about declined jobs."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self.asked: list[Declined] = []
        # The answers to the next requests, None for none at all; the last one stays.
        self.answers: list[DeclinedAnswer | None] = [NOWHERE]

    async def open(self) -> None:
        await ensure_bucket(self._desk.link.jetstream, self._desk.settings.flows_kv_bucket)
        await self._desk.link.client.subscribe(self._desk.settings.declined_subject("w1"), cb=self._on_request)

    async def catalogue(self) -> WorkerCatalogue | None:
        entry = await Bucket(self._desk.link, self._desk.settings.flows_kv_bucket).get("w1")
        return None if entry is None else WorkerCatalogue.decode(entry.value)

    async def _on_request(self, msg: Msg) -> None:
        self.asked.append(Declined.decode(msg.data))
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if answer is not None and msg.reply:
            await msg.respond(answer.encode())


@pytest.fixture
async def office(desk: Desk) -> Office:
    office = Office(desk)
    await office.open()
    return office


async def test_the_catalogue_is_published_before_the_record(
    desk: Desk, office: Office, start_worker: StartWorker
) -> None:
    start_worker("w1")
    record = await eventually(lambda: desk.worker_record("w1"), what="the worker's record")
    catalogue = await office.catalogue()
    assert record is not None
    assert catalogue is not None
    assert (catalogue.instance_id, catalogue.tags) == (record.instance_id, ["default"])
    assert [flow.name for flow in catalogue.catalogue.flows] == record.flows


async def test_a_job_is_declined_before_the_claim_as_often_as_it_takes(
    desk: Desk, office: Office, start_worker: StartWorker
) -> None:
    office.answers = [LATER, LATER, NOWHERE]
    start_worker("w1")
    run_id = await desk.submit("rare")
    run = await desk.wait_ended(run_id)
    assert (run.status, run.reason, run.error, run.attempt) == (
        RunStatus.FAILED,
        "flow_not_found",
        "it is nowhere",
        1,
    )
    # The job is kept meanwhile: no delivery is used up.
    assert [(asked.run_id, asked.flow_name, asked.num_delivered) for asked in office.asked] == [
        (run_id, "rare", 1)
    ] * 3
    assert "known flows: " in office.asked[0].reason
    await desk.wait_queue_empty()
    [letter] = await desk.dead_letters()
    assert (letter.reason, letter.error) == ("flow_not_found", "it is nowhere")


async def test_a_job_that_is_handed_over_is_executed_and_answered_by_the_other_worker(
    desk: Desk, office: Office, start_worker: StartWorker, tmp_path: Path
) -> None:
    poor, rich = tmp_path / "poor", tmp_path / "rich"
    for folder in (poor, rich):
        folder.mkdir()
    (rich / "rare.py").write_text(
        "from pyoco import Flow, task\n\n@task\ndef work(): return 1\n\nf = Flow('rare') >> work"
    )
    start_worker("w1", flows_dir=str(poor))
    # A queue that it takes nothing from: the job comes from the other worker.
    start_worker("w2", "--tags", "cpu", flows_dir=str(rich))
    await eventually(lambda: desk.worker_record("w2"), what="the other worker")
    office.answers = [HANDED_OVER]
    run_id = await desk.submit("rare")
    await eventually(lambda: office.asked, what="the request")
    [asked] = office.asked
    job = Job(run_id=run_id, flow_name="rare", tag="default", submitted_at=1.0)
    control = Control(kind=ControlKind.JOB, job=job, ack_subject=asked.ack_subject, num_delivered=1)
    # It hears of jobs of its tags.
    answer = await desk.link.request(desk.settings.handover_subject("w2", "cpu"), control.encode())
    assert answer.data == JOB_TAKEN
    run = await desk.wait_ended(run_id)
    assert (run.status, run.attempt, run.worker_id) == (RunStatus.COMPLETED, 1, "w2")
    await desk.wait_queue_empty()
    assert len(office.asked) == 1


async def test_a_worker_without_a_free_runner_refuses_a_job(
    desk: Desk, office: Office, start_worker: StartWorker, tmp_path: Path
) -> None:
    start_worker("w1")
    run_id = await desk.submit("waiting", file=str(tmp_path / "go"))
    await desk.wait_running(run_id)
    job = Job(run_id="another", flow_name="tiny", tag="default", submitted_at=1.0)
    subject = ack_subject(desk.settings.work_stream, desk.settings.work_durable("default"), 9, 9)
    for about in (
        Control(kind=ControlKind.OFFER, offer=offer_of(job, subject)),
        Control(kind=ControlKind.JOB, job=job, ack_subject=subject, num_delivered=1),
    ):
        answer = await desk.link.request(desk.settings.handover_subject("w1", "default"), about.encode())
        assert answer.data == JOB_REFUSED
    (tmp_path / "go").touch()
    await desk.wait_ended(run_id)


async def test_a_job_that_was_offered_to_a_busy_worker_goes_before_its_queue(
    desk: Desk, office: Office, start_worker: StartWorker, tmp_path: Path
) -> None:
    start_worker("w1")
    gated = await desk.submit("waiting", file=str(tmp_path / "go"))
    await desk.wait_running(gated)
    # Another worker has taken the first one.
    first = desk.job("tiny")
    await desk.runs.create(first.run_id, RunSnapshot.pending(first, now=1.0).encode())
    await desk.queue(first)
    second = await desk.submit("tiny")
    subscription = await desk.link.jetstream.pull_subscribe_bind("pyoco_workers_default", "PYOCO_WORK")
    [msg] = await subscription.fetch(1, timeout=30)
    subject = desk.settings.handover_subject("w1", "default")
    offer = Control(kind=ControlKind.OFFER, offer=offer_of(first, msg.reply), offered_seconds=30.0)
    assert (await desk.link.request(subject, offer.encode())).data == JOB_REFUSED
    assert office.asked == []
    (tmp_path / "go").touch()
    # It asks for the job when it has a runner for it, and keeps that for a while.
    assert await eventually(lambda: office.asked, what="the worker wanting the job") == [offer.offer]
    job = Control(kind=ControlKind.JOB, job=first, ack_subject=msg.reply, num_delivered=1)
    assert (await desk.link.request(subject, job.encode())).data == JOB_TAKEN
    runs = [await desk.wait_ended(run_id) for run_id in (gated, first.run_id, second)]
    assert [run.attempt for run in runs] == [1, 1, 1]
    times = [run.start_time or 0.0 for run in runs]
    assert times == sorted(times)
    await desk.wait_queue_empty()


async def test_a_runner_that_was_kept_for_a_job_that_does_not_come_is_given_to_the_queue(
    desk: Desk, office: Office, start_worker: StartWorker
) -> None:
    start_worker("w1")
    await eventually(lambda: desk.worker_record("w1"), what="the worker")
    subject = ack_subject(desk.settings.work_stream, desk.settings.work_durable("default"), 9, 9)
    offer = Control(kind=ControlKind.OFFER, offer=offer_of(desk.job("tiny"), subject))
    answer = await desk.link.request(desk.settings.handover_subject("w1", "default"), offer.encode())
    assert answer.data == JOB_WANTED
    run = await desk.wait_ended(await desk.submit("tiny"))
    assert (run.status, run.attempt) == (RunStatus.COMPLETED, 1)


async def test_a_question_names_the_state_of_the_flows_that_it_comes_from(
    desk: Desk, office: Office, start_worker: StartWorker, tmp_path: Path
) -> None:
    """So that runs-api does not pass over the worker once it has loaded the flow."""
    flows = tmp_path / "flows"
    flows.mkdir()
    office.answers = [LATER]
    worker = start_worker("w1", flows_dir=str(flows))
    run_id = await desk.submit("rare")
    await eventually(lambda: office.asked, what="the request")
    before = await office.catalogue()
    (flows / "rare.py").write_text(
        "from pyoco import Flow, task\n\n@task\ndef work(): return 1\n\nf = Flow('rare') >> work"
    )
    worker.process.send_signal(signal.SIGHUP)
    run = await desk.wait_ended(run_id)
    assert run.status is RunStatus.COMPLETED
    after = await office.catalogue()
    assert before is not None
    assert after is not None
    assert after.loaded_at > before.loaded_at
    assert {asked.loaded_at for asked in office.asked} == {before.loaded_at}


async def test_a_run_whose_flow_only_the_runner_finds_missing_is_handed_back_and_declined(
    desk: Desk, office: Office, start_worker: StartWorker, tmp_path: Path
) -> None:
    """A resolver knows only when it is asked. The retries of the run are not touched."""
    (tmp_path / "mine.py").write_text("def find(name): raise KeyError(name)\n")
    office.answers = [LATER, LATER, NOWHERE]
    start_worker("w1", "--flow-resolver", f"{tmp_path / 'mine.py'}:find", flows_dir="")
    run_id = await desk.submit("rare")
    run = await desk.wait_ended(run_id)
    assert (run.status, run.reason, run.error, run.failures) == (
        RunStatus.FAILED,
        "flow_not_found",
        "it is nowhere",
        0,
    )
    # The second time it is known before the claim.
    assert [record.outcome for record in run.earlier_attempts] == [AttemptOutcome.HANDED_BACK]
    assert run.attempt == 2


@pytest.mark.own_nats
async def test_a_job_that_was_declined_while_nats_was_away_or_nobody_answered_is_declined_again(
    desk: Desk, office: Office, start_worker: StartWorker, nats_server: NatsServer
) -> None:
    office.answers = [None, LATER, NOWHERE]
    start_worker("w1")
    run_id = await desk.submit("rare")
    await eventually(lambda: office.asked, what="the first request")
    nats_server.kill()
    nats_server.start()
    await eventually(lambda: len(office.asked) == 3, what="the last request")
    run = await desk.wait_ended(run_id)
    assert (run.status, run.error, run.attempt) == (RunStatus.FAILED, "it is nowhere", 1)
    await desk.wait_queue_empty()


async def test_own_flows_go_on_while_other_jobs_are_declined(
    desk: Desk, office: Office, start_worker: StartWorker
) -> None:
    office.answers = [LATER]
    worker = start_worker("w1")
    foreign = [await desk.submit("rare") for _ in range(16)]
    await eventually(lambda: len(office.asked) >= 100, what="jobs that are declined again and again")
    run = await desk.wait_ended(await desk.submit("tiny"))
    assert run.status is RunStatus.COMPLETED
    assert run.start_time is not None
    assert run.submitted_at is not None
    assert run.start_time - run.submitted_at < 10.0
    assert {(await desk.snapshot(run_id)).attempt for run_id in foreign} == {0}
    # What it keeps it gives back at once when it stops.
    assert worker.stop(within=5.0) == 0

    async def counts() -> tuple[int | None, int | None]:
        info = await desk.link.jetstream.consumer_info("PYOCO_WORK", desk.settings.work_durable("default"))
        return info.num_ack_pending, info.num_pending

    await eventually(counts, until=lambda found: found == (16, 0), what="the jobs in the queue")


def test_the_pace_slows_down_while_all_jobs_are_declined_and_recovers_at_once() -> None:
    pace, busy = DecliningPace(), DeclinedJob(0.2)
    now, pauses = 100.0, []
    for _ in range(7):
        pace.note(busy, now=now)
        # Jobs that were taken together count as one.
        pace.note(busy, now=now)
        pauses.append(round(pace.seconds_left(now=now), 3))
        now += pauses[-1]
        assert pace.seconds_left(now=now) == 0.0
    assert pauses == [0.05, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1]
    pace.note(HandedBack(0.0), now=now)
    pace.note(DeclinedJob(None), now=now)
    assert pace.seconds_left(now=now) == 0.0
    pace.note(busy, now=now)
    assert round(pace.seconds_left(now=now), 3) == 0.05


async def test_jobs_are_claimed_again_when_nobody_has_listened_for_long(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(declining, "_LONGEST_SILENCE_SECONDS", 0.2)
    settings = WorkerSettings(nats_url=desk.settings.nats_url, worker_id="w9")
    asking = Declining(desk.link, settings, cast(RunnerPool, None), is_answered=lambda: True)
    job = desk.job("rare")
    reply = ack_subject(settings.work_stream, settings.work_durable("default"), 9, 9)
    delivery = Delivery.handed_over(job, subject=settings.work_subject("default"), reply=reply, num_delivered=1)
    assert await asking.ask(job, delivery) == DeclinedJob(1.0)

    async def is_claimed() -> bool:
        return await asking.ask(job, delivery) == FlowNowhere()

    await eventually(is_claimed, within=5, what="the end of the patience")
