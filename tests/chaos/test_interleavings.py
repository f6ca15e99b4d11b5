"""Whatever happens to a run in whatever order, its state never goes back, it ends once, and ledger and KV agree."""

import asyncio
import os
import time
import traceback
import uuid
from collections import Counter, defaultdict
from contextlib import AsyncExitStack
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from sqlalchemy import text

from fleet_contracts.job import Job
from fleet_contracts.names import ConsumerDefaults
from fleet_contracts.retry import RetryPolicy
from fleet_contracts.snapshot import RunSnapshot
from fleet_contracts.status import RunStatus
from fleet_kit.nats.link import NatsLink
from fleet_runs_api.ledger.sql.database import Database
from fleet_testkit.apps import ANONYMOUS, ServiceProcess
from fleet_testkit.buckets import Bucket
from fleet_testkit.chaos.scripted_worker import ScriptedWorker, short_claim_delays
from fleet_testkit.chaos.snapshot_history import SnapshotHistory, broken_rules
from fleet_testkit.nats_resources import make_queues
from fleet_testkit.nats_server import NatsServer
from fleet_testkit.waiting import eventually
from fleet_worker.job.disposition import Ended, Fenced
from fleet_worker.settings import WorkerSettings

pytestmark = pytest.mark.long

# The same examples every time, unless somebody asks for so many new ones: what failed is printed either way.
EXAMPLES = int(os.environ.get("FLEET_INTERLEAVINGS", "0"))
WORKERS = 3
# Nothing may hang; what does is shown where it does.
STORY_SECONDS = 60.0
LOST_AFTER_SECONDS = 0.5
REQUEST_TIMEOUT_SECONDS = 0.5
PAUSE_SECONDS = 0.8
RETRY = RetryPolicy(base_seconds=0.05, cap_seconds=0.1)
# Far more than any example needs: nothing may end because of it.
MAX_DELIVER = 200


class Verb(StrEnum):
    SUBMIT = "submit"
    CANCEL = "cancel"
    REQUEUE = "requeue"
    # The job is delivered again although it is held, or published once more.
    REDELIVER = "redeliver"
    DUPLICATE = "duplicate"
    CLAIM = "claim"
    # By a runner that ignores a cancel.
    CLAIM_IGNORING_CANCEL = "claim, ignoring cancel"
    HEARTBEAT = "heartbeat"
    COMPLETE = "complete"
    FAIL = "fail"
    CRASH = "crash"
    STOP = "stop"
    KILL = "kill"
    # Long enough that a holder who is silent counts as lost.
    WAIT = "wait"
    # NATS is paused until the services give up; once in an example, and felt by all its stories.
    PAUSE = "pause"


# A worker that holds nothing takes a job before it does one of these.
OF_A_HOLDER = {Verb.HEARTBEAT, Verb.COMPLETE, Verb.FAIL, Verb.CRASH, Verb.STOP, Verb.KILL}


@dataclass(frozen=True)
class Act:
    verb: Verb
    # The worker that acts, and the run; both are taken modulo how many there are.
    worker: int
    run: int


# Acts that lead to more states come more often.
VERBS = [
    *[Verb.FAIL] * 6,
    *[Verb.CLAIM, Verb.REQUEUE, Verb.HEARTBEAT] * 4,
    *[Verb.REDELIVER, Verb.DUPLICATE, Verb.KILL, Verb.CRASH, Verb.STOP, Verb.CLAIM_IGNORING_CANCEL, Verb.CANCEL] * 2,
    *[Verb.SUBMIT, Verb.COMPLETE, Verb.PAUSE, Verb.WAIT, Verb.WAIT],
]
ACTS = st.builds(Act, st.sampled_from(VERBS), st.integers(0, WORKERS - 1), st.integers(0, 1))
# The acts of one step happen at once.
STEPS = st.lists(st.lists(ACTS, min_size=1, max_size=4), min_size=8, max_size=24)
# Stories that have nothing to do with each other are played together: most of their time they wait.
STORIES = st.lists(STEPS, min_size=4, max_size=4)


class World:
    """The services, the connections of the workers and the history, for as many examples as are wanted."""

    def __init__(self, server: NatsServer, database_url: str, folder: Path, *, replicas: int) -> None:
        self.nats_url = server.url
        self.has_paused = False
        self.folder = folder
        self.database = Database(database_url)
        self.history = SnapshotHistory("pyoco_runs")
        self.services: list[httpx.AsyncClient] = []
        self.links: list[NatsLink] = []
        # How often each thing has happened, over all examples.
        self.seen: Counter[str] = Counter()
        self._server = server
        self._database_url = database_url
        self._replicas = replicas
        self._open = AsyncExitStack()

    async def __aenter__(self) -> "World":
        for number in range(self._replicas):
            folder = self.folder / f"replica-{number}"
            folder.mkdir()
            service = ServiceProcess(
                "fleet_runs_api",
                folder,
                PYOCO_NATS_URL=self.nats_url,
                PYOCO_RUNS_DATABASE_URL=self._database_url,
                PYOCO_NATS_REQUEST_TIMEOUT_SEC=str(REQUEST_TIMEOUT_SECONDS),
                PYOCO_SWEEP_INTERVAL_SEC="0.1",
                PYOCO_RUN_LOST_AFTER_SEC=str(LOST_AFTER_SECONDS),
                PYOCO_RUN_CHECK_INTERVAL_SEC="0.3",
            )
            client = await self._open.enter_async_context(service.serving())
            client.headers.update(ANONYMOUS)
            client.timeout = httpx.Timeout(30)
            self.services.append(client)
        for number in range(WORKERS + 1):
            link = NatsLink(WorkerSettings(nats_url=self.nats_url), name=f"worker-{number}")
            self.links.append(await self._open.enter_async_context(link))
            await link.wait_ready()
        await self.history.follow(self.links[WORKERS].client)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._open.aclose()
        self.database.dispose()

    async def pause(self) -> None:
        """NATS is paused for longer than the services wait for it."""
        if self.has_paused:
            return
        self.has_paused = True
        self._server.pause()
        try:
            await asyncio.sleep(PAUSE_SECONDS)
        finally:
            self._server.resume()

    def rows(self, sql: str, **values: Any) -> list[Any]:
        return list(self.database.read(lambda connection: connection.execute(text(sql), values).all()))


class Story:
    """Runs and workers of its own, under a tag of its own."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.tag = uuid.uuid4().hex
        self.link = world.links[WORKERS]
        self.runs = Bucket(self.link, "pyoco_runs")
        self.settings = [
            WorkerSettings(
                nats_url=world.nats_url,
                worker_id=f"worker-{number}",
                tags=[self.tag],
                ack_progress_interval_sec=0.2,
                run_heartbeat_interval_sec=0.001,
                run_lost_after_sec=LOST_AFTER_SECONDS,
                cancel_grace_period_sec=0.1,
                nak_delay_sec=0.1,
                # A scripted runner is no process that could be measured.
                run_memory_max_bytes=0,
            )
            for number in range(WORKERS)
        ]
        self.workers = [ScriptedWorker(world.links[n], self.settings[n], world.folder) for n in range(WORKERS)]
        self.run_ids: list[str] = []
        # The run of each submit, by the number that its key is made of; None while it was not accepted.
        self.submits: dict[int, str | None] = {}
        self.requeued: Counter[str] = Counter()
        # Requeues of which the caller does not know.
        self.perhaps_requeued: Counter[str] = Counter()
        # When a cancel was recorded, as callers were answered: by run, and how often it had been reopened.
        self.cancelled_at: dict[tuple[str, int], set[float]] = defaultdict(set)

    async def play(self, steps: list[list[Act]]) -> None:
        settings = self.settings[0]
        consumers = ConsumerDefaults(consumer_ack_wait_sec=1.0, consumer_max_deliver=MAX_DELIVER)
        await make_queues(self.link.jetstream, settings, tags=[self.tag], consumers=consumers)
        for worker in self.workers:
            await worker.open()
        await self.submit(0)
        await eventually(self.all_accepted, what="the first run accepted")
        for step in steps:
            await asyncio.gather(*(self.act(act) for act in step))
        await self.bring_to_rest()

    async def close(self) -> None:
        for worker in self.workers:
            await worker.close()

    async def act(self, act: Act) -> None:
        worker = self.workers[act.worker]
        if act.verb in OF_A_HOLDER and not worker.held:
            await worker.take()
        run_id = self.run_ids[act.run % len(self.run_ids)]
        match act.verb:
            case Verb.SUBMIT:
                await self.submit(act.worker)
            case Verb.CANCEL:
                await self.cancel(run_id, act.worker)
            case Verb.REQUEUE:
                await self.requeue(run_id, act.worker)
            case Verb.REDELIVER:
                await self.redeliver(run_id)
            case Verb.DUPLICATE:
                await self.link.publish(self.settings[0].work_subject(self.tag), self.job(run_id).encode())
            case Verb.CLAIM | Verb.CLAIM_IGNORING_CANCEL:
                await worker.take(obeys_cancel=act.verb is Verb.CLAIM)
            case Verb.HEARTBEAT:
                await worker.keep_alive()
            case Verb.COMPLETE:
                await worker.end(RunStatus.COMPLETED)
            case Verb.FAIL:
                await worker.end(RunStatus.FAILED)
            case Verb.CRASH:
                await worker.crash()
            case Verb.STOP:
                await worker.stop()
            case Verb.KILL:
                await worker.kill()
            case Verb.WAIT:
                await asyncio.sleep(1.5 * LOST_AFTER_SECONDS)
            case Verb.PAUSE:
                # Submits meanwhile are refused, or accepted later; each worker takes a job that NATS then has.
                await asyncio.gather(self.world.pause(), self.submit(act.worker), self.submit(act.worker + 1))
                await asyncio.gather(*(worker.take() for worker in self.workers))

    def service(self, number: int) -> httpx.AsyncClient:
        """Callers of a fleet do not choose the replica that answers them."""
        return self.world.services[number % len(self.world.services)]

    async def submit(self, number: int) -> None:
        self.submits[key := len(self.submits)] = None
        await self.submit_under(key, number)

    async def submit_under(self, key: int, number: int) -> None:
        # Every other run may fail twice.
        retry = RETRY.model_copy(update={"max_attempts": 1 + key % 2})
        body = {"flow_name": "scripted", "tag": self.tag, "retry": retry.model_dump()}
        headers = {"Idempotency-Key": f"{self.tag}:{key}:1760000000000"}
        answer = await self.service(number).post("/runs", json=body, headers=headers)
        if self.is_refused(answer):
            return
        run_id = answer.json()["run_id"]
        assert self.submits[key] in (None, run_id), f"key {key} is two runs: {self.submits[key]} and {run_id}"
        if self.submits[key] is None:
            self.submits[key] = run_id
            self.run_ids.append(run_id)

    def is_refused(self, answer: httpx.Response) -> bool:
        """NATS is paused."""
        assert answer.status_code in (httpx.codes.OK, httpx.codes.SERVICE_UNAVAILABLE), answer.text
        self.world.seen["refused"] += not answer.is_success
        return not answer.is_success

    async def all_accepted(self) -> bool:
        """Refused submits are sent again with the same key, perhaps to another replica."""
        refused = [key for key, run_id in self.submits.items() if run_id is None]
        await asyncio.gather(*(self.submit_under(key, key) for key in refused))
        return None not in self.submits.values()

    async def cancel(self, run_id: str, number: int) -> None:
        answer = await self.service(number).post(f"/runs/{run_id}/cancel")
        if self.is_refused(answer):
            return
        answered = RunSnapshot.decode(answer.content)
        if answered.cancel_requested_at is not None:
            self.cancelled_at[run_id, answered.reopened].add(answered.cancel_requested_at)

    async def requeue(self, run_id: str, number: int) -> None:
        service = self.service(number)
        letters = await service.get("/dlq", params={"run_id": run_id})
        for letter in letters.json()["items"]:
            answer = await service.post(f"/dlq/{letter['id']}/requeue")
            if answer.status_code != httpx.codes.CONFLICT:
                counted = self.perhaps_requeued if self.is_refused(answer) else self.requeued
                counted[run_id] += 1

    async def redeliver(self, run_id: str) -> None:
        """As if AckWait were over while the holder goes on."""
        held = await self.snapshot(run_id)
        if held.ack_subject is not None:
            await self.link.send(held.ack_subject, b"-NAK")

    async def snapshot(self, run_id: str) -> RunSnapshot:
        entry = await self.runs.get(run_id)
        assert entry is not None, f"run {run_id} was accepted and is gone"
        return RunSnapshot.decode(entry.value)

    def job(self, run_id: str) -> Job:
        return Job(run_id=run_id, flow_name="scripted", tag=self.tag, tags=[self.tag], submitted_at=time.time())

    # The end -------------------------------------------------------------------------------------

    async def bring_to_rest(self) -> None:
        """The workers finish what is left, until nothing is."""
        await eventually(self.all_accepted, what="every submit accepted")
        # Once more, each under its key: it is the same run.
        await asyncio.gather(*(self.submit_under(key, key + 1) for key in self.submits))
        await eventually(self.is_over, within=20, what="the end of every run and job")
        await eventually(self.disagreements_are_gone, within=30, what="ledger and KV agreeing")

    async def is_over(self) -> bool:
        await asyncio.gather(*(self.work_off(worker) for worker in self.workers))
        if not all([(await self.snapshot(run_id)).is_terminal for run_id in self.run_ids]):
            return False
        settings = self.settings[0]
        subject = settings.work_subject(self.tag)
        work = await self.link.jetstream.stream_info(settings.work_stream, subjects_filter=subject)
        return not (work.state.subjects or {}).get(subject)

    async def work_off(self, worker: ScriptedWorker) -> None:
        await worker.keep_alive()
        await worker.end(RunStatus.COMPLETED)
        await worker.take()

    async def disagreements_are_gone(self) -> bool:
        return not await self.disagreements()

    async def disagreements(self) -> list[str]:
        """The differences between ledger and KV, of each run and in the totals."""
        found = []
        rows = self.world.rows(
            "SELECT run_id, status, attempt, failures, reopened FROM runs WHERE tag = :tag", tag=self.tag
        )
        ledger = {row.run_id: tuple(row)[1:] for row in rows}
        if ledger.keys() != set(self.run_ids):
            found.append(f"accepted: {sorted(self.run_ids)}, in the ledger: {sorted(ledger)}")
        for run_id in self.run_ids:
            s = await self.snapshot(run_id)
            live = (s.status, s.attempt, s.failures, s.reopened)
            if ledger.get(run_id) != live:
                found.append(f"run {run_id}: KV {live}, ledger {ledger.get(run_id)}")
        return found

    async def check(self) -> None:
        world = self.world
        entries = {run_id: await self.runs.get(run_id) for run_id in self.run_ids}
        await eventually(
            lambda: all(e is not None and world.history.of(i)[-1].number == e.revision for i, e in entries.items()),
            what="the history complete",
        )
        begun = {run_id for worker in self.workers for run_id in worker.begun}
        assert begun <= set(self.run_ids), f"executed and not accepted: {begun - set(self.run_ids)}"
        for run_id in self.run_ids:
            wrong = [*broken_rules(world.history.of(run_id)), *await self.broken_promises(run_id)]
            assert not wrong, "\n".join([*wrong, *self.account_of(run_id)])
        miscounted = [row for table in ("run_counts", "flow_counts") for row in self.miscounted(table)]
        assert not miscounted, miscounted

    async def broken_promises(self, run_id: str) -> list[str]:
        """The promises that the run's history breaks, compared with what was reported of it."""
        revisions = self.world.history.of(run_id)
        last = revisions[-1].snapshot
        reports = [report for worker in self.workers for report in worker.reports if report.run_id == run_id]
        ends = Counter((p.snapshot.attempt, p.snapshot.status) for p in revisions if p.snapshot.is_terminal)
        reported = Counter(
            (r.attempt, r.outcome.status) for r in reports if isinstance(r.outcome, Ended) and r.attempt
        )
        attempts = (await self.service(0).get(f"/runs/{run_id}/attempts")).json()["attempts"]
        self.note(run_id, last, [report.outcome for report in reports])
        wrong = {
            "a worker reported an end that is not written": reported - ends,
            "a requeue was lost or done twice": not 0
            <= last.reopened - self.requeued[run_id]
            <= self.perhaps_requeued[run_id],
            "two cancels disagree": any(len(moments) > 1 for moments in self.cancelled_at.values()),
            "attempts are missing": [a["attempt"] for a in attempts] != list(range(1, last.attempt + 1)),
            "deliveries ran out": last.reason == "deliveries_exhausted",
        }
        return [promise for promise, is_broken in wrong.items() if is_broken]

    def miscounted(self, table: str) -> list[Any]:
        """In one statement, as other examples' runs may still be moving: what the counters say less what there is."""
        keys = "tenant_id, status" if table == "run_counts" else "tenant_id, flow_name, tag, status"
        return self.world.rows(
            f"SELECT {keys}, SUM(n) FROM (SELECT {keys}, total AS n FROM {table}"
            f" UNION ALL SELECT {keys}, -1 AS n FROM runs) AS both_sides GROUP BY {keys} HAVING SUM(n) <> 0"
        )

    def note(self, run_id: str, last: RunSnapshot, outcomes: list[Any]) -> None:
        seen = self.world.seen
        seen["runs"] += 1
        seen["attempts"] += last.attempt
        seen[last.status] += 1
        seen["reopened"] += last.reopened
        seen["fenced"] += sum(isinstance(outcome, Fenced) for outcome in outcomes)
        seen["retried"] += sum(p.snapshot.not_before is not None for p in self.world.history.of(run_id))
        seen["interrupted"] += sum(r.outcome == "interrupted" for r in last.earlier_attempts)

    def account_of(self, run_id: str) -> list[str]:
        """The history of a run, for the message of a failure."""
        reports = [str(r) for worker in self.workers for r in worker.reports if r.run_id == run_id]
        return [f"run {run_id}:", *(str(revision) for revision in self.world.history.of(run_id)), *reports]


async def play(world: World, stories: list[list[list[Act]]]) -> None:
    world.has_paused = False
    played = [Story(world) for _ in stories]
    async with asyncio.timeout(STORY_SECONDS):
        try:
            await asyncio.gather(*(story.play(steps) for story, steps in zip(played, stories, strict=True)))
            # After all of them: a pause of one story is felt by the others.
            await asyncio.gather(*(story.check() for story in played))
        finally:
            await asyncio.gather(*(story.close() for story in played))


@pytest.fixture(params=["one service on SQLite", "two replicas on PostgreSQL"])
def world(request: pytest.FixtureRequest, nats_server: NatsServer, tmp_path: Path) -> World:
    if "SQLite" in request.param:
        world = World(nats_server, f"sqlite:///{tmp_path}/runs.db", tmp_path, replicas=1)
    else:
        world = World(nats_server, request.getfixturevalue("postgres_url"), tmp_path, replicas=2)
    return world


@pytest.mark.own_nats
def test_whatever_happens_in_whatever_order_a_run_ends_once_and_ledger_and_kv_agree(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    with asyncio.Runner() as runner, short_claim_delays():
        runner.run(world.__aenter__())

        @settings(
            max_examples=EXAMPLES or 8,
            derandomize=not EXAMPLES,
            database=None,
            deadline=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
            print_blob=True,
        )
        @given(STORIES)
        def any_interleaving(stories: list[list[list[Act]]]) -> None:
            runner.run(play(world, stories))

        try:
            any_interleaving()
        except (AssertionError, TimeoutError, ExceptionGroup) as failure:
            # As text: what there is to see is the story and the history, not the source of this test.
            pytest.fail("".join(traceback.format_exception(failure)), pytrace=False)
        finally:
            runner.run(world.__aexit__())
    with capsys.disabled():
        print(f"\n[figures] interleavings: {dict(world.seen)}")
    # Had nothing of this happened, the test would have shown nothing.
    happened = {name for name, times in world.seen.items() if times}
    assert happened >= {
        *map(str, (RunStatus.COMPLETED, RunStatus.FAILED, RunStatus.CANCELLED)),
        "reopened",
        "fenced",
        "refused",
    }
