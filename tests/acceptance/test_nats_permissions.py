"""Each user of the stack's NATS tries all that it may not do; every other test shows what it may do."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import nats
import nkeys
import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import NoRespondersError
from nats.js.errors import KeyNotFoundError

from fleet_contracts.catalogue import Catalogue, FlowOffer, FlowSource, SourceKind, WorkerCatalogue
from fleet_contracts.control import JOB_TAKEN, JOB_WANTED, Control, ControlKind
from fleet_contracts.declined import Declined, DeclinedAnswer, DeclinedDecision
from fleet_contracts.nats_roles import inbox_prefix
from fleet_contracts.status import WorkerState
from fleet_contracts.worker_record import WorkerRecord
from fleet_testkit.fleet import Fleet
from fleet_testkit.log_check import REFUSED_ON_PURPOSE
from fleet_testkit.nats_users import operator_file, worker_file
from fleet_testkit.runs import Snapshot, read, submit, wait_ended
from fleet_testkit.stack import Stack
from fleet_testkit.waiting import eventually, wait_until
from fleet_testkit.worker_process import WorkerProcess

API = "$JS.API"
# Of a run that does not exist.
DECLINED = Declined(
    run_id="forged", flow_name="x", tag="probe", ack_subject="$JS.ACK.x", num_delivered=1, reason="not here"
)
STREAMS = [
    "PYOCO_WORK",
    "PYOCO_DLQ",
    "PYOCO_EVENTS",
    "KV_pyoco_runs",
    "KV_pyoco_workers",
    "KV_pyoco_flows",
    "KV_pyoco_auth",
    "OBJ_pyoco_wheels",
]
READ_KEYS = [
    f"{API}.DIRECT.GET.KV_pyoco_auth",
    f"{API}.DIRECT.GET.KV_pyoco_auth.$KV.pyoco_auth.key",
    f"{API}.STREAM.MSG.GET.KV_pyoco_auth",
    f"{API}.CONSUMER.CREATE.KV_pyoco_auth",
    f"{API}.CONSUMER.CREATE.KV_pyoco_auth.x",
    f"{API}.CONSUMER.DURABLE.CREATE.KV_pyoco_auth.x",
    f"{API}.CONSUMER.MSG.NEXT.KV_pyoco_auth.x",
]
WRITE_KEYS = ["$KV.pyoco_auth.key"]
PUBLISH_WORK = ["pyoco.work.default", "pyoco.work.probe"]
# Nobody but the operator.
RUIN = [f"{API}.STREAM.{verb}.{stream}" for stream in STREAMS for verb in ("DELETE", "UPDATE", "SNAPSHOT", "RESTORE")]


def ruin_but_for(*own: str) -> list[str]:
    """An owner may change its own streams, because it gives them replicas: NATS knows no smaller right."""
    return [subject for subject in RUIN if subject not in {f"{API}.STREAM.UPDATE.{stream}" for stream in own}]


MAY_NOT = {
    "worker": [
        "$KV.pyoco_workers.another",
        "$KV.pyoco_flows.another",
        f"{API}.DIRECT.GET.KV_pyoco_flows.$KV.pyoco_flows.probe",
        "pyoco.declined.another",
        f"{API}.DIRECT.GET.KV_pyoco_workers.$KV.pyoco_workers.another",
        f"{API}.DIRECT.GET.KV_pyoco_workers",
        *PUBLISH_WORK,
        *READ_KEYS,
        *WRITE_KEYS,
        *RUIN,
        *(f"{API}.STREAM.CREATE.{stream}" for stream in [*STREAMS, "MINE"]),
        *(f"{API}.STREAM.PURGE.{stream}" for stream in STREAMS),
        *(f"{API}.STREAM.MSG.DELETE.{stream}" for stream in STREAMS),
        *(f"{API}.STREAM.MSG.GET.{stream}" for stream in STREAMS),
        *(f"{API}.CONSUMER.CREATE.{stream}" for stream in STREAMS),
        f"{API}.CONSUMER.CREATE.PYOCO_WORK.mine.pyoco.work.probe",
        f"{API}.CONSUMER.DURABLE.CREATE.PYOCO_WORK.pyoco_workers_probe",
        f"{API}.CONSUMER.DELETE.PYOCO_WORK.pyoco_workers_probe",
        f"{API}.CONSUMER.PAUSE.PYOCO_WORK.pyoco_workers_probe",
        # Jobs of tags that are not its own.
        f"{API}.CONSUMER.MSG.NEXT.PYOCO_WORK.pyoco_workers_default",
        f"{API}.CONSUMER.MSG.NEXT.KV_pyoco_runs.pyoco_runs_ingest",
        "$JS.ACK.PYOCO_WORK.pyoco_workers_default.1.1.1.1.1",
        "$JS.ACK.KV_pyoco_runs.pyoco_runs_ingest.1.1.1.1.1",
        # In the name of another one, or of nobody.
        "pyoco.events.another.some-run",
        "pyoco.events.some-run",
        "pyoco.dlq.default",
        "pyoco.control.another",
        "pyoco.control.another.probe",
        "$O.pyoco_wheels.M.x",
        "$O.pyoco_wheels.C.x",
        "$KV.pyoco_wheel_history.x",
        f"{API}.STREAM.LIST",
        f"{API}.INFO",
        "$SYS.REQ.SERVER.PING",
        "_INBOX.somebody.else",
        "anything",
    ],
    "runs-api": [
        *READ_KEYS,
        *WRITE_KEYS,
        *ruin_but_for("PYOCO_WORK", "PYOCO_DLQ", "PYOCO_EVENTS", "KV_pyoco_runs", "KV_pyoco_flows"),
        "$KV.pyoco_workers.probe",
        "$O.pyoco_wheels.M.x",
        "$KV.pyoco_wheel_history.x",
        f"{API}.STREAM.PURGE.PYOCO_WORK",
        f"{API}.STREAM.PURGE.KV_pyoco_workers",
    ],
    "workers-api": [
        *READ_KEYS,
        *WRITE_KEYS,
        *ruin_but_for("KV_pyoco_workers"),
        *PUBLISH_WORK,
        "$KV.pyoco_runs.x",
        "$KV.pyoco_flows.x",
        "pyoco.declined.x",
        f"{API}.DIRECT.GET.KV_pyoco_runs.$KV.pyoco_runs.x",
        f"{API}.CONSUMER.CREATE.PYOCO_WORK",
        f"{API}.CONSUMER.MSG.NEXT.PYOCO_WORK.pyoco_workers_default",
        "$O.pyoco_wheels.M.x",
        "pyoco.dlq.default",
        "pyoco.events.x.x",
    ],
    "wheels-api": [
        *READ_KEYS,
        *WRITE_KEYS,
        # It may change how its own store is kept, if somebody else made it otherwise.
        *ruin_but_for("OBJ_pyoco_wheels", "KV_pyoco_wheel_history"),
        *PUBLISH_WORK,
        "$KV.pyoco_runs.x",
        "$KV.pyoco_workers.probe",
        f"{API}.DIRECT.GET.KV_pyoco_runs.$KV.pyoco_runs.x",
        f"{API}.CONSUMER.CREATE.PYOCO_WORK",
        f"{API}.CONSUMER.MSG.NEXT.PYOCO_WORK.pyoco_workers_default",
        "pyoco.control.probe",
        "pyoco.dlq.default",
    ],
    "auth": [
        *ruin_but_for("KV_pyoco_auth"),
        *PUBLISH_WORK,
        "$KV.pyoco_runs.x",
        "$KV.pyoco_workers.probe",
        f"{API}.DIRECT.GET.KV_pyoco_runs.$KV.pyoco_runs.x",
        f"{API}.CONSUMER.CREATE.KV_pyoco_runs",
        f"{API}.CONSUMER.CREATE.PYOCO_WORK",
        f"{API}.CONSUMER.MSG.NEXT.PYOCO_WORK.pyoco_workers_default",
        "$O.pyoco_wheels.M.x",
        "pyoco.control.probe",
        "pyoco.dlq.default",
        "pyoco.events.x.x",
    ],
}
MAY_NOT_HEAR = [
    *(">", "_INBOX.>", "pyoco.>", "pyoco.work.>", "pyoco.control.>", "pyoco.control.another"),
    # Jobs of the worker's own tag for another worker, and of another tag for itself.
    *("pyoco.control.*.*", "pyoco.control.another.probe", "pyoco.control.probe.default"),
    "$KV.pyoco_flows.>",
    *(
        "pyoco.dlq.>",
        "$KV.>",
        "$KV.pyoco_auth.>",
        "$KV.pyoco_runs.>",
        "$KV.pyoco_workers.>",
        "$O.>",
        "$JS.>",
        "$SYS.>",
    ),
]


class Somebody:
    """A connection as one of the stack's users, and what the server refused it."""

    def __init__(self) -> None:
        self.client = Client()
        self.refused: set[str] = set()

    async def note(self, error: Exception) -> None:
        self.refused.add(str(error))

    async def wait_refused(self, verb: str, subjects: list[str]) -> None:
        """The server has refused every one of them."""

        def allowed() -> list[str]:
            # The library gives what servers say in lower case.
            said = 'nats: permissions violation for {} to "{}"'
            return [subject for subject in subjects if said.format(verb, subject.lower()) not in self.refused]

        with contextlib.suppress(AssertionError):
            await eventually(lambda: not allowed(), what="every refusal")
        assert allowed() == []


@asynccontextmanager
async def connected(stack: Fleet, role: str, *, worker_id: str = "probe") -> AsyncIterator[Somebody]:
    if role == "worker":
        file = worker_file(stack.nats_url, worker_id, ["probe"])
    elif role == "operator":
        file = operator_file(stack.nats_url)
    else:
        file = stack.credentials(role)
    assert file is not None
    somebody = Somebody()
    await somebody.client.connect(
        stack.nats_url,
        name=REFUSED_ON_PURPOSE,
        nkeys_seed=str(file),
        inbox_prefix=inbox_prefix(public_key(file)),
        error_cb=somebody.note,
    )
    try:
        yield somebody
    finally:
        await somebody.client.close()


def public_key(file: Path) -> str:
    return str(nkeys.from_seed(bytearray(file.read_text().strip().encode())).public_key.decode())


@pytest.mark.parametrize("role", MAY_NOT)
async def test_nobody_may_publish_what_is_not_theirs(stack: Fleet, role: str) -> None:
    async with connected(stack, role) as somebody:
        for subject in MAY_NOT[role]:
            await somebody.client.publish(subject, b"{}", reply=somebody.client.new_inbox())
        await somebody.wait_refused("publish", MAY_NOT[role])


@pytest.mark.parametrize("role", MAY_NOT)
async def test_nobody_may_listen_to_others(stack: Fleet, role: str) -> None:
    runs_api = inbox_prefix(public_key(stack.credentials("runs-api")))
    # Only runs-api reads events, which it sends to the followers of a run, and answers workers that decline jobs.
    own = [f"{runs_api}.>", "pyoco.events.>", "pyoco.events.*.*", "pyoco.declined.>", "pyoco.declined.another"]
    others = own if role != "runs-api" else []
    subjects = [*MAY_NOT_HEAR, *others]

    async def ignore(_: Msg) -> None:
        return

    async with connected(stack, role) as somebody:
        for subject in subjects:
            await somebody.client.subscribe(subject, cb=ignore)
        await somebody.wait_refused("subscription", subjects)


async def test_a_worker_that_claims_a_tag_which_its_credentials_lack_is_handed_no_job_of_it(
    stack: Fleet, flows_dir: Path, tmp_path: Path, marks: Path
) -> None:
    """Its record is its own, so it may name any tag there; and its catalogue names the flow."""
    tag = "not-the-probes"
    empty = tmp_path / "empty"
    empty.mkdir()
    heard: list[Msg] = []

    async def hear(msg: Msg) -> None:
        heard.append(msg)
        if msg.reply:
            await msg.respond(JOB_WANTED if Control.decode(msg.data).kind is ControlKind.OFFER else JOB_TAKEN)

    async with connected(stack, "worker", worker_id="liar") as liar:
        for subject in ("pyoco.control.liar", "pyoco.control.liar.probe", f"pyoco.control.liar.{tag}"):
            await liar.client.subscribe(subject, cb=hear)
        await liar.wait_refused("subscription", [f"pyoco.control.liar.{tag}"])
        record = WorkerRecord(
            worker_id="liar",
            instance_id="liar-1",
            state=WorkerState.IDLE,
            last_seen_at=time.time(),
            last_heartbeat_at=time.time(),
            tags=["probe", tag],
            slots=1000,
        )
        offer = FlowOffer(name="marked", source=FlowSource(kind=SourceKind.FILE, place="probes.py"))
        catalogue = WorkerCatalogue(
            worker_id="liar",
            instance_id="liar-1",
            tags=record.tags,
            loaded_at=time.time(),
            catalogue=Catalogue(flows=[offer]),
        )
        await liar.client.request("$KV.pyoco_flows.liar", catalogue.encode(), timeout=30)
        await liar.client.request("$KV.pyoco_workers.liar", record.encode(), timeout=30)

        def runs_of_the_tag() -> list[Snapshot]:
            with WorkerProcess(stack.nats_url, tmp_path, "ignorant", tag=tag, flows_dir=empty) as ignorant:
                ignorant.wait_registered(stack.client)
                run_ids = [submit(stack.client, "marked", tag=tag, marks=str(marks), label=tag) for _ in range(3)]

                def are_unheard() -> bool:
                    return all("answers" in str(read(stack.client, each)["waiting_detail"]) for each in run_ids)

                # The ignorant one has declined them, and runs-api has looked for another worker.
                wait_until(lambda: heard or are_unheard(), what="the reason of the waiting")
                assert heard == []
                with WorkerProcess(stack.nats_url, tmp_path, "honest", tag=tag, flows_dir=flows_dir) as honest:
                    honest.wait_registered(stack.client)
                    since = time.time()
                    ended = wait_ended(stack.client, run_ids, within=20)
            assert max(run["start_time"] for run in ended) - since < 5.0
            assert marks.read_text().split() == [tag] * 3
            return ended

        ended = await asyncio.to_thread(runs_of_the_tag)
        stopped = record.model_copy(update={"state": WorkerState.STOPPED_GRACEFUL})
        await liar.client.request("$KV.pyoco_workers.liar", stopped.encode(), timeout=30)
    assert {(run["status"], run["attempt"], run["worker_id"]) for run in ended} == {("COMPLETED", 1, "honest")}
    assert heard == []


async def test_a_worker_cannot_have_an_answer_sent_where_it_may_not_write(stack: Fleet) -> None:
    """NATS sends an answer wherever the request says: within one account that would be a way around every rule."""
    places = ["$KV.pyoco_workers.victim", "$KV.pyoco_auth.victim", "pyoco.work.probe", "pyoco.control.another"]
    async with connected(stack, "operator") as operator, connected(stack, "worker") as worker:
        js = operator.client.jetstream()
        content = b'{"flow_name":"hello","run_id":"forged","tag":"probe"}'
        read = f"{API}.DIRECT.GET.KV_pyoco_runs.$KV.pyoco_runs.forged"
        await worker.client.request("$KV.pyoco_runs.forged", content, timeout=30)
        for place in places:
            await worker.client.publish("$KV.pyoco_runs.forged", content, reply=place)
            await worker.client.publish(read, b"", reply=place)
            await worker.client.publish("pyoco.declined.probe", DECLINED.encode(), reply=place)
            await worker.client.publish(
                f"{API}.CONSUMER.MSG.NEXT.PYOCO_WORK.pyoco_workers_probe", b'{"no_wait":true}', reply=place
            )
        # Many times the way that those had to go.
        for _ in range(50):
            await worker.client.request("$KV.pyoco_runs.forged", content, timeout=30)
            assert (await worker.client.request(read, b"", timeout=30)).data == content
        for bucket in ("pyoco_workers", "pyoco_auth"):
            with pytest.raises(KeyNotFoundError):
                await (await js.key_value(bucket)).get("victim")
        assert not (await js.stream_info("PYOCO_WORK", subjects_filter="pyoco.work.probe")).state.subjects
        await (await js.key_value("pyoco_runs")).delete("forged")


@pytest.mark.also_composed("secrets")
async def test_a_worker_cannot_wipe_what_it_may_write(stack: Fleet) -> None:
    """With Nats-Rollup: all on one subject a stream that allows it drops all the others."""
    [kept] = await asyncio.to_thread(lambda: wait_ended(stack.client, [submit(stack.client, "hello", name="kept")]))
    async with connected(stack, "worker") as worker:
        for subject in (
            "$KV.pyoco_runs.forged",
            "$KV.pyoco_workers.probe",
            "pyoco.events.probe.forged",
            "pyoco.dlq.probe",
        ):
            for reach in ("all", "sub"):
                answer = await worker.client.request(subject, b"", headers={"Nats-Rollup": reach}, timeout=30)
                assert b"rollup not permitted" in answer.data, subject
        read = f"{API}.DIRECT.GET.KV_pyoco_runs.$KV.pyoco_runs.{kept['run_id']}"
        assert kept["run_id"].encode() in (await worker.client.request(read, b"", timeout=30)).data


async def test_a_snapshot_that_a_worker_removes_is_soon_put_back_from_the_ledger(
    stack: Fleet, flows_dir: Path, tmp_path: Path, marks: Path
) -> None:
    """NATS allows or refuses subjects, not headers: whoever may write a key may leave the marker of its deletion."""
    gate = tmp_path / "gate"

    def start(flow: str, tag: str, **params: str) -> list[str]:
        return [submit(stack.client, flow, tag=tag, label=f"{tag}-{how}", **params) for how in ("DEL", "PURGE")]

    def wait(run_ids: list[str]) -> list[dict[str, Any]]:
        return wait_ended(stack.client, run_ids, within=20)

    def executed(label: str) -> int:
        return marks.read_text().split().count(label)

    def worker_of(tag: str) -> WorkerProcess:
        return WorkerProcess(stack.nats_url, tmp_path, f"of-{tag}", tag=tag, flows_dir=flows_dir, slots=2)

    with worker_of("removed"):
        ended = await asyncio.to_thread(lambda: wait(start("marked", "removed", marks=str(marks))))
        held = start("gated", "removed", marks=str(marks), gate=str(gate))
        queued = start("marked", "removed-later", marks=str(marks))
        await eventually(lambda: executed("removed-DEL") == executed("removed-PURGE") == 2, what="the runs held")
        async with connected(stack, "worker") as worker:
            for one, other in ([run["run_id"] for run in ended], held, queued):
                for run_id, operation in ((one, "DEL"), (other, "PURGE")):
                    answer = await worker.client.request(
                        f"$KV.pyoco_runs.{run_id}", b"", headers={"KV-Operation": operation}, timeout=30
                    )
                    assert b'"seq"' in answer.data
            # What expires by itself would need no marker.
            answer = await worker.client.request(
                f"$KV.pyoco_runs.{held[0]}", b"", headers={"Nats-TTL": "1s"}, timeout=30
            )
            assert b"per-message TTL is disabled" in answer.data
        gate.touch()
        for run in await asyncio.to_thread(lambda: wait(held)):
            assert run["status"] == "COMPLETED"
    with worker_of("removed-later"):
        for run in await asyncio.to_thread(lambda: wait(queued)):
            assert run["status"] == "COMPLETED"
    again = await asyncio.to_thread(lambda: wait([run["run_id"] for run in ended]))
    for run, before in zip(again, ended, strict=True):
        for name in ("status", "result", "attempt", "worker_id", "end_time", "tasks"):
            assert run[name] == before[name], name
    assert executed("removed-later-DEL") == executed("removed-later-PURGE") == 1


@pytest.mark.also_composed("secrets")
async def test_a_worker_reaches_what_is_its_own(stack: Fleet) -> None:
    """So that the refusals above mean something."""
    async with connected(stack, "worker") as worker:
        for subject in (
            "$KV.pyoco_workers.probe",
            "$KV.pyoco_flows.probe",
            "$KV.pyoco_runs.probe-run",
            "pyoco.events.probe.some-run",
            "pyoco.dlq.probe",
        ):
            answer = await worker.client.request(subject, b"{}", headers={"Nats-Expected-Stream": "NONE"})
            assert b"expected stream does not match" in answer.data
        answer = await worker.client.request(f"{API}.DIRECT.GET.KV_pyoco_workers.$KV.pyoco_workers.probe", b"")
        assert (answer.headers or {}).get("Status") == "404"
        with pytest.raises(NoRespondersError):
            await worker.client.request("pyoco.control.probe", b"")
        answer = await worker.client.request("pyoco.declined.probe", DECLINED.encode(), timeout=30)
        assert DeclinedAnswer.decode(answer.data).decision is DeclinedDecision.NOT_FOUND
        assert worker.refused == set()


@pytest.mark.also_composed("secrets")
async def test_nobody_gets_in_without_a_key_or_with_an_unknown_one(stack: Fleet, tmp_path: Path) -> None:
    from fleet_kit.files.nkeys import make_nkey

    make_nkey(tmp_path / "unknown.nk")
    for seed in (None, str(tmp_path / "unknown.nk")):
        with pytest.raises(nats.errors.Error, match="Authorization Violation"):
            await nats.connect(stack.nats_url, nkeys_seed=seed, allow_reconnect=False)


@pytest.mark.also_composed("secrets and signals")
async def test_a_worker_whose_credentials_are_removed_is_sent_away_at_once(stack: Fleet) -> None:
    async with connected(stack, "worker") as worker:
        await asyncio.to_thread(stack.send_away, "probe")
        begun = time.monotonic()
        await eventually(lambda: not worker.client.is_connected, what="the connection ended by the server")
        assert time.monotonic() - begun < 20
    # Nobody else has noticed.
    [ended] = await asyncio.to_thread(
        lambda: wait_ended(stack.client, [submit(stack.client, "hello", name="still here")])
    )
    assert ended["status"] == "COMPLETED"


@pytest.mark.embedded_only("files of the data dir; what containers show is in tests/containers")
def test_no_secret_of_a_user_is_anywhere_but_in_its_own_file(stack: Stack) -> None:
    seeds = {file: file.read_text().strip() for file in (stack.data_dir / "credentials").rglob("*.nk")}
    assert len(seeds) >= 6
    assert {file.stat().st_mode & 0o777 for file in seeds} == {0o600}
    others = [
        file
        for file in stack.data_dir.rglob("*")
        if file.is_file() and file not in seeds and "nats/" not in str(file.relative_to(stack.data_dir))
    ]
    contents = b"".join(file.read_bytes() for file in others)
    commands = b"".join(file.read_bytes() for file in Path("/proc").glob("[0-9]*/cmdline"))
    for file, seed in seeds.items():
        assert seed.encode() not in contents + commands, file
