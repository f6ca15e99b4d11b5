"""Jobs that a worker declines because it does not offer their flow; the workers are played by the tests."""

import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from nats.aio.msg import Msg
from nats.js import JetStreamContext

from fleet_contracts.catalogue import BrokenSource, Catalogue, FlowOffer, FlowSource, SourceKind, WorkerCatalogue
from fleet_contracts.control import JOB_REFUSED, JOB_TAKEN, JOB_WANTED, Control, ControlKind
from fleet_contracts.declined import Declined, DeclinedAnswer, DeclinedDecision
from fleet_contracts.status import RunStatus, WorkerState
from fleet_contracts.worker_record import WorkerRecord
from fleet_kit.nats.resources import ensure_consumer
from fleet_kit.nats.streams import work_consumer_config
from fleet_testkit.buckets import Bucket
from fleet_testkit.nats_server import NatsServer
from fleet_testkit.scrapes import Scrape
from fleet_testkit.waiting import eventually

from .conftest import RunsUnderTest, runs_running, runs_settings

HANDED_OVER, LATER, NOT_FOUND = DeclinedDecision
FLOW_WAIT_SECONDS = 0.5


class Workers:
    """Writes records and catalogues, takes jobs and declines them as workers do."""

    def __init__(self, service: RunsUnderTest, jobs: JetStreamContext.PullSubscription) -> None:
        self.service = service
        self._jobs = jobs
        # What the workers were sent: offers of jobs, and jobs.
        self.offered: list[Control] = []
        self.handed_over: list[Control] = []

    async def announce(
        self,
        worker_id: str,
        *flows: str,
        tag: str = "default",
        busy: bool = False,
        draining: bool = False,
        is_open: bool = False,
        broken: list[BrokenSource] | None = None,
        has_catalogue: bool = True,
        slots: int = 1,
    ) -> float:
        """When its flows were loaded."""
        now = time.time()
        record = WorkerRecord(
            worker_id=worker_id,
            instance_id=f"{worker_id}-1",
            state=WorkerState.IDLE,
            last_seen_at=now,
            last_heartbeat_at=now,
            tags=[tag],
            current_run_ids=["another"] if busy else [],
            draining=draining,
            slots=slots,
        )
        source = FlowSource(kind=SourceKind.FILE, place="flows.py")
        offered = Catalogue(
            flows=[FlowOffer(name=name, source=source) for name in flows], is_open=is_open, broken=broken or []
        )
        catalogue = WorkerCatalogue(
            worker_id=worker_id, instance_id=record.instance_id, tags=[tag], loaded_at=now, catalogue=offered
        )
        if has_catalogue:
            await Bucket(self.service.link, "pyoco_flows").put(worker_id, catalogue.encode())
        await Bucket(self.service.link, "pyoco_workers").put(worker_id, record.encode())
        parts = self.service.app.state.service

        def is_seen() -> bool:
            seen = parts._fleet.worker(worker_id)
            if seen is None or seen.last_seen_at != now:
                return False
            known = parts.catalogues.of_worker(seen)
            return (known is not None and known.loaded_at == now) or not has_catalogue

        await eventually(is_seen, what="the service knowing the worker")
        return now

    async def listen(self, worker_id: str, answer: bytes | None, *, to_offer: bytes | None = JOB_WANTED) -> None:
        """Answer every job that the worker is handed, and every offer; None: never."""

        async def take(msg: Msg) -> None:
            control = Control.decode(msg.data)
            is_offer = control.kind is ControlKind.OFFER
            (self.offered if is_offer else self.handed_over).append(control)
            if (said := to_offer if is_offer else answer) is not None:
                await msg.respond(said)

        await self.service.link.client.subscribe(f"pyoco.control.{worker_id}.default", cb=take)

    async def take(self, *, times: int = 1) -> Declined:
        [msg] = await self._jobs.fetch(1, timeout=30)
        metadata = msg.metadata
        assert metadata.num_delivered == times
        return Declined(
            run_id=msg.headers["Nats-Msg-Id"].partition(":")[0],
            flow_name="rare",
            tag="default",
            ack_subject=msg.reply,
            num_delivered=metadata.num_delivered,
            reason="not here",
        )

    async def find_no_job(self) -> None:
        with pytest.raises(TimeoutError):
            await self._jobs.fetch(1, timeout=0.3)

    async def decline(self, declined: Declined, *, worker_id: str = "poor") -> DeclinedAnswer:
        answer = await self.service.link.request(f"pyoco.declined.{worker_id}", declined.encode())
        return DeclinedAnswer.decode(answer.data)

    async def give_back(self, declined: Declined) -> None:
        await self.service.link.send(declined.ack_subject, b"-NAK")


@pytest.fixture
async def workers(nats_server: NatsServer, tmp_path: Path) -> AsyncIterator[Workers]:
    """One worker that offers nothing, and more as a test announces them."""
    settings = runs_settings(
        nats_server, tmp_path, flow_wait_sec=FLOW_WAIT_SECONDS, consumer_ack_wait_sec=120, consumer_max_deliver=3
    )
    async with runs_running(settings) as service:
        js = service.link.jetstream
        await ensure_consumer(js, "PYOCO_WORK", work_consumer_config(settings, settings, "default"))
        workers = Workers(service, await js.pull_subscribe_bind("pyoco_workers_default", "PYOCO_WORK"))
        await workers.announce("poor", "common")
        yield workers


async def test_a_declined_job_is_handed_to_a_free_worker_that_offers_its_flow(workers: Workers) -> None:
    await workers.announce("busy", "rare", busy=True)
    await workers.announce("drained", "rare", draining=True)
    await workers.announce("full", "rare")
    await workers.announce("any", is_open=True)
    await workers.listen("full", None, to_offer=JOB_REFUSED)
    await workers.listen("any", JOB_TAKEN)
    run_id = await workers.service.submit("rare")
    declined = await workers.take()
    answer = await workers.decline(declined)
    assert answer == DeclinedAnswer(decision=HANDED_OVER)
    # Only the one that has room is sent the job, and its params.
    assert [control.offer.run_id for control in workers.offered if control.offer] == [run_id, run_id]
    assert [control.job for control in workers.offered] == [None, None]
    [taken] = workers.handed_over
    assert taken.job is not None
    assert (taken.job.run_id, taken.ack_subject, taken.num_delivered) == (run_id, declined.ack_subject, 1)
    assert (await workers.service.snapshot(run_id)).attempt == 0


async def test_a_job_whose_workers_are_all_busy_is_asked_about_again_soon(workers: Workers) -> None:
    await workers.announce("busy", "rare", busy=True)
    await workers.listen("busy", None, to_offer=JOB_REFUSED)
    run_id = await workers.service.submit("rare")
    declined = await workers.take()
    answers = [await workers.decline(declined) for _ in range(5)]
    assert {answer.decision for answer in answers} == {LATER}
    assert [answer.retry_seconds for answer in answers] == [0.2, 0.4, 0.8, 1.0, 1.0]
    # It may ask for the job as soon as it can; until then it is not sent it.
    assert len(workers.offered) == 5
    assert {control.offered_seconds for control in workers.offered} == {1.5}
    assert workers.handed_over == []
    shown = (await workers.service.client.get(f"/runs/{run_id}")).json()
    assert shown["waiting_reason"] == "flow"
    assert shown["waiting_detail"] == "all workers of tag default that offer the flow are busy"


async def test_a_busy_worker_gets_the_job_when_it_has_room_for_it_and_nobody_else_does(workers: Workers) -> None:
    for worker_id in ("busy", "also-busy"):
        await workers.announce(worker_id, "rare", busy=True)
        await workers.listen(worker_id, JOB_TAKEN, to_offer=JOB_REFUSED)
    await workers.service.submit("rare")
    declined = await workers.take()
    assert {(await workers.decline(declined)).decision for _ in range(2)} == {LATER}
    assert len(workers.offered) == 2
    # Both want it, and say so without waiting for an answer.
    for worker_id, control in zip(("busy", "also-busy"), workers.offered, strict=True):
        assert control.offer is not None
        await workers.service.link.send(f"pyoco.declined.{worker_id}", control.offer.encode())
    await eventually(lambda: workers.handed_over, what="the job")
    answer = await eventually(
        lambda: workers.decline(declined), until=lambda found: found.decision is not LATER, what="the hand-over"
    )
    assert answer.decision is HANDED_OVER
    assert len(workers.handed_over) == 1


async def test_a_worker_that_does_not_hear_of_jobs_of_the_tag_delays_none(workers: Workers) -> None:
    """Such as one that names a tag which its permissions do not have; or one whose process stands still."""
    await workers.announce("liar", "rare", slots=1000)
    await workers.announce("frozen", "rare", slots=100)
    await workers.announce("rich", "rare", slots=10)
    await workers.listen("frozen", None, to_offer=None)
    await workers.listen("rich", JOB_TAKEN)
    first, second = [await workers.service.submit("rare") for _ in range(2)]
    for run_id in (first, second):
        declined = await workers.take()
        assert declined.run_id == run_id
        begun = time.monotonic()
        assert (await workers.decline(declined)).decision is HANDED_OVER
        assert time.monotonic() - begun < 2.0
    # The second time they come after the one that has answered.
    assert len(workers.offered) == 3
    assert [control.job.run_id for control in workers.handed_over if control.job] == [first, second]


async def test_a_job_whose_workers_do_not_answer_goes_to_the_queue_and_does_not_fail(workers: Workers) -> None:
    """They may be of a version that does not listen there, and take it by chance."""
    await workers.announce("older", "rare")
    run_id = await workers.service.submit("rare")
    begun = time.monotonic()
    while time.monotonic() < begun + 2 * FLOW_WAIT_SECONDS:
        declined = await workers.take()
        assert declined.run_id == run_id
        answers = [(await workers.decline(declined)).decision for _ in range(4)]
        assert answers == [LATER, LATER, LATER, HANDED_OVER]
    declined = await workers.take()
    shown = await workers.service.listed(run_id)
    assert shown["status"] == "PENDING"
    # One that listens again is handed the job at once.
    await workers.listen("older", JOB_TAKEN)
    assert (await workers.decline(declined)).decision is HANDED_OVER
    assert len(workers.handed_over) == 1


async def test_a_job_that_no_worker_has_room_for_goes_to_the_end_of_the_queue(workers: Workers) -> None:
    await workers.announce("busy", "rare", busy=True)
    await workers.listen("busy", None)
    first, second = [await workers.service.submit("rare") for _ in range(2)]
    declined = (await workers.take()).model_copy(update={"has_room": False})
    assert declined.run_id == first
    assert await workers.decline(declined) == DeclinedAnswer(decision=HANDED_OVER)
    assert [(await workers.take()).run_id for _ in range(2)] == [second, first]
    assert workers.offered == []
    assert (await workers.service.client.get(f"/runs/{first}/attempts")).json()["decisions"] == []


async def test_a_job_that_nobody_can_execute_waits_a_while_and_then_names_what_is_broken(workers: Workers) -> None:
    missing = BrokenSource(place="etl.py", exc_type="ModuleNotFoundError", message="No module named 'pandas'", line=3)
    taken = BrokenSource(place="the flow other of wheel x 1.0", exc_type="FlowNameTaken", message="no")
    await workers.announce("broken", "more", broken=[missing, taken])
    await workers.announce("elsewhere", "rare", tag="gpu")
    run_id = await workers.service.submit("rare")
    declined = await workers.take()
    begun = time.monotonic()
    answer = await workers.decline(declined)
    assert answer.decision is LATER
    assert 0 < answer.retry_seconds <= FLOW_WAIT_SECONDS
    shown = await workers.service.listed(run_id)
    assert shown["waiting_reason"] == "flow"
    assert "no live worker of tag default offers the flow" in shown["waiting_detail"]
    answer = await eventually(
        lambda: workers.decline(declined), until=lambda found: found.decision is not LATER, what="the last word"
    )
    assert time.monotonic() - begun >= FLOW_WAIT_SECONDS
    assert answer.decision is NOT_FOUND
    assert answer.error == (
        "flow 'rare' is offered by no live worker of the tag default; known flows: common, more; "
        "etl.py could not be loaded: ModuleNotFoundError: No module named 'pandas' (line 3)"
    )
    assert workers.handed_over == []


async def test_a_worker_that_comes_within_the_wait_is_handed_the_job(workers: Workers) -> None:
    await workers.service.submit("rare")
    declined = await workers.take()
    assert (await workers.decline(declined)).decision is LATER
    await workers.announce("rich", "rare")
    await workers.listen("rich", JOB_TAKEN)
    assert (await workers.decline(declined)).decision is HANDED_OVER


async def test_a_worker_that_has_declined_a_run_is_not_handed_it_before_it_has_loaded_other_flows(
    workers: Workers,
) -> None:
    """Such as one that has the flow according to its catalogue, and cannot load it."""
    await workers.announce("any", is_open=True)
    await workers.listen("any", JOB_TAKEN)
    await workers.service.submit("rare")
    declined = await workers.take()
    assert (await workers.decline(declined, worker_id="any")).decision is LATER
    assert (await workers.decline(declined)).decision is LATER
    await workers.announce("any", is_open=True)
    assert (await workers.decline(declined)).decision is HANDED_OVER


async def test_a_question_that_a_reload_has_overtaken_does_not_exclude_the_worker(workers: Workers) -> None:
    looked_into = await workers.announce("any", "common")
    await workers.service.submit("rare")
    declined = await workers.take()
    await workers.announce("any", "rare")
    await workers.listen("any", JOB_TAKEN)
    of_older = declined.model_copy(update={"loaded_at": looked_into})
    assert (await workers.decline(of_older, worker_id="any")).decision is LATER
    assert (await workers.decline(declined)).decision is HANDED_OVER


async def test_a_worker_without_a_catalogue_may_take_the_job_by_chance(workers: Workers) -> None:
    await workers.announce("peer", has_catalogue=False)
    await workers.listen("peer", JOB_TAKEN)
    run_id = await workers.service.submit("rare")
    begun = time.monotonic()
    while time.monotonic() < begun + 2 * FLOW_WAIT_SECONDS:
        declined = await workers.take()
        assert declined.run_id == run_id
        # It is in the queue again, where the other one can take it.
        assert (await workers.decline(declined)).decision is HANDED_OVER
    assert workers.handed_over == []


async def test_a_run_that_its_worker_holds_is_given_back_before_another_one_gets_it(workers: Workers) -> None:
    await workers.announce("rich", "rare")
    await workers.listen("rich", JOB_TAKEN)
    run_id = await workers.service.submit("rare")
    declined = await workers.take()
    await workers.service.claim(run_id, worker_id="poor", ack_subject=declined.ack_subject)
    assert await workers.decline(declined) == DeclinedAnswer(decision=LATER, retry_seconds=0.0)
    # Whoever holds it answers its job. A run that has ended, or is cancelled, is settled by a claim.
    await workers.announce("other", "common")
    assert await workers.decline(declined, worker_id="other") == DeclinedAnswer(decision=HANDED_OVER)
    await workers.service.change(run_id, lambda run: run.finish(RunStatus.COMPLETED, now=time.time()))
    assert await workers.decline(declined, worker_id="other") == DeclinedAnswer(decision=NOT_FOUND)
    assert workers.handed_over == []


async def test_nothing_is_handed_over_for_a_request_that_does_not_fit(workers: Workers) -> None:
    await workers.announce("rich", "rare", "common")
    await workers.listen("rich", JOB_TAKEN)
    await workers.announce("stranger", "common", tag="gpu")
    await workers.service.submit("rare")
    declined = await workers.take()
    await workers.service.submit("rare")
    other = await workers.take()
    forged = [
        declined.model_copy(update={"ack_subject": other.ack_subject}),
        declined.model_copy(update={"run_id": other.run_id}),
        declined.model_copy(update={"tag": "gpu"}),
        declined.model_copy(update={"flow_name": "common"}),
        declined.model_copy(update={"ack_subject": "pyoco.work.default"}),
        declined.model_copy(update={"ack_subject": f"{declined.ack_subject} x"}),
        declined.model_copy(update={"ack_subject": declined.ack_subject.replace("default", "gpu")}),
    ]
    answers = [await workers.decline(request) for request in forged]
    answers.append(await workers.decline(declined, worker_id="stranger"))
    answers.append(await workers.decline(declined, worker_id="nobody"))
    assert {answer.model_dump_json() for answer in answers} == {
        DeclinedAnswer(decision=LATER, retry_seconds=1.0).model_dump_json()
    }
    assert workers.handed_over == []
    scrape = Scrape((await workers.service.client.get("/metrics")).text)
    assert scrape.value("pyoco_declined_jobs_total", decision="refused") == len(answers)
    assert (await workers.decline(declined)).decision is HANDED_OVER


async def test_a_job_that_is_lost_on_the_way_to_another_worker_is_handed_out_again(workers: Workers) -> None:
    await workers.announce("rich", "rare")
    await workers.listen("rich", None)
    run_id = await workers.service.submit("rare")
    declined = await workers.take()
    assert (await workers.decline(declined)).decision is HANDED_OVER
    again = await workers.take(times=2)
    assert again.run_id == run_id


async def test_a_run_whose_deliveries_were_used_up_by_those_that_decline_it_is_queued_again(
    workers: Workers,
) -> None:
    await workers.announce("busy", "rare", busy=True)
    await workers.listen("busy", None, to_offer=JOB_REFUSED)
    run_id = await workers.service.submit("rare")
    for times in (1, 2, 3):
        declined = await workers.take(times=times)
        assert (await workers.decline(declined)).decision is LATER
        await workers.give_back(declined)
    again = await workers.take()
    assert again.run_id == run_id
    assert again.ack_subject != declined.ack_subject
    snapshot = await workers.service.snapshot(run_id)
    assert (snapshot.status, snapshot.attempt) == ("PENDING", 0)
    decisions = (await workers.service.client.get(f"/runs/{run_id}/attempts")).json()["decisions"]
    assert [decision["kind"] for decision in decisions] == ["redispatch"]
    assert "do not offer its flow" in decisions[0]["reason"]


async def test_a_run_that_was_interrupted_is_not_queued_again_without_end(workers: Workers) -> None:
    """Such as one that takes its worker's machine down each time: a new job would be delivered as often again."""
    await workers.announce("busy", "rare", busy=True)
    await workers.listen("busy", None, to_offer=JOB_REFUSED)
    run_id = await workers.service.submit("rare")
    declined = await workers.take()
    await workers.service.claim(run_id, worker_id="busy", ack_subject=declined.ack_subject)
    await workers.service.change(run_id, lambda run: run.hand_back(now=time.time(), interrupted=True))
    await workers.give_back(declined)
    for times in (2, 3):
        declined = (await workers.take(times=times)).model_copy(update={"has_room": False})
        assert (await workers.decline(declined)).decision is LATER
        await workers.give_back(declined)
    # JetStream says that a job has no deliveries left when it is asked for one.
    await workers.find_no_job()
    ended = await workers.service.until_listed(run_id, status="FAILED")
    assert ended["reason"] == "deliveries_exhausted"
