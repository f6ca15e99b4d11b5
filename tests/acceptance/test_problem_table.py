"""The spec's table of ERR and MSG ids, from end to end: every problem is caused and reported as the table says."""

import os
import subprocess
import sys
import sysconfig
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from fleet_contracts.problems import Problem
from fleet_contracts.status import RunStatus
from fleet_kit.errors import code_of_status
from fleet_testkit.containers.open_fleet import NatsContainer, OpenFleet
from fleet_testkit.fleet import Fleet, MakesFleets, NatsOfItsOwn
from fleet_testkit.ledger import accepted_run_ids
from fleet_testkit.log_lines import log_lines
from fleet_testkit.nats_server import NatsServer, free_port
from fleet_testkit.runs import submit, wait_ended, wait_status
from fleet_testkit.stack import Stack
from fleet_testkit.waiting import wait_until
from fleet_testkit.wheels import build_wheel, upload_of
from fleet_testkit.wire import Wire
from fleet_testkit.worker_process import WorkerProcess

pytestmark = pytest.mark.long

# An answer over HTTP, a line of a log, or what a command or process says on stderr.
Evidence = httpx.Response | dict[str, Any] | str


@dataclass(frozen=True)
class Ground:
    """The fleet on which problems are caused."""

    stack: Fleet
    guarded: Fleet
    # A stack whose NATS a test may take away.
    brittle: Fleet
    brittle_nats: NatsOfItsOwn
    wire: Wire
    flows_dir: Path
    folder: Path

    def worker(self, tag: str, **env: str) -> WorkerProcess:
        return WorkerProcess(self.stack.nats_url, self.folder, tag, tag=tag, flows_dir=self.flows_dir, **env)

    def mark(self, tag: str, *, seconds: float) -> str:
        """A run that takes so long."""
        marks = str(self.folder / "marks")
        return submit(self.stack.client, "marked", tag=tag, marks=marks, label=tag, seconds=seconds)


QUICK = {"PYOCO_NATS_REQUEST_TIMEOUT_SEC": "2", "PYOCO_ACK_PROGRESS_INTERVAL_SEC": "0.2"}


@pytest.fixture(scope="module")
def brittle_pair(
    is_composed: bool, new_fleet: MakesFleets, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Fleet, NatsOfItsOwn]]:
    """A fleet, and its NATS, which nobody starts again but the test."""
    folder = tmp_path_factory.mktemp("brittle")
    if is_composed:
        with new_fleet(folder, env=QUICK) as fleet:
            assert isinstance(fleet, OpenFleet)
            yield fleet, NatsContainer(fleet)
        return
    server = NatsServer(folder / "nats")
    server.start()
    with Stack(folder / "data", "--nats-url", server.url, with_nats=False, env=QUICK) as stack:
        yield stack, server
    server.kill()


@pytest.fixture(scope="module")
def brittle(brittle_pair: tuple[Fleet, NatsOfItsOwn]) -> Fleet:
    return brittle_pair[0]


@pytest.fixture(scope="module")
def brittle_nats(brittle_pair: tuple[Fleet, NatsOfItsOwn]) -> NatsOfItsOwn:
    return brittle_pair[1]


@pytest.fixture
def ground(
    stack: Fleet,
    guarded: Fleet,
    brittle: Fleet,
    brittle_nats: NatsOfItsOwn,
    wire: Wire,
    flows_dir: Path,
    tmp_path: Path,
) -> Ground:
    return Ground(stack, guarded, brittle, brittle_nats, wire, flows_dir, tmp_path)


def line_of(problem: Problem, log: Callable[[], str], **fields: Any) -> dict[str, Any]:
    """The first line of a log with the problem."""
    # A ledger that is locked is waited for, by every batch of writes for ten seconds.
    lines = wait_until(
        lambda: log_lines(log(), err_id=problem.err_id, **fields), within=60, what=f"{problem.err_id} in the log"
    )
    return lines[0]


# Over HTTP ----------------------------------------------------------------------------------------


def bad_body(ground: Ground, _: Problem) -> Evidence:
    return ground.stack.client.post("/runs", json={"flow": "hello"})


def missing_run(ground: Ground, _: Problem) -> Evidence:
    return ground.stack.client.get(f"/runs/{uuid.uuid4()}")


def no_key(ground: Ground, _: Problem) -> Evidence:
    return ground.guarded.client.get("/runs")


def unknown_key(ground: Ground, _: Problem) -> Evidence:
    return ground.guarded.client.get("/runs", headers={"X-API-Key": "nobody's"})


def large_workflow(ground: Ground, _: Problem) -> Evidence:
    file = {"workflow": b"# " + b"x" * 262_144}
    return ground.stack.client.post("/runs/yaml", data={"flow_name": "hello"}, files=file)


def bad_list_query(ground: Ground, _: Problem) -> Evidence:
    return ground.stack.client.get("/runs", params={"cursor": "made up"})


def bad_workers_query(ground: Ground, _: Problem) -> Evidence:
    return ground.stack.client.get("/workers", params={"state": "ASLEEP"})


def same_wheel_twice(ground: Ground, _: Problem) -> Evidence:
    wheel = upload_of(build_wheel(ground.folder, "twice"))
    ground.stack.client.post("/wheels", files=wheel).raise_for_status()
    return ground.stack.client.post("/wheels", files=wheel)


def missing_wheel(ground: Ground, _: Problem) -> Evidence:
    return ground.stack.client.get("/wheels/nobody-1.0-py3-none-any.whl")


def bad_worker_patch(ground: Ground, _: Problem) -> Evidence:
    return ground.stack.client.patch("/workers/nobody", json={"hidden": "yes"})


def unknown_worker(method: str, path: str) -> "Producer":
    def ask(ground: Ground, _: Problem) -> Evidence:
        body = {"hidden": True} if method == "PATCH" else None
        return ground.stack.client.request(method, path, json=body)

    return ask


def submit_without_nats(ground: Ground, _: Problem) -> Evidence:
    ground.brittle_nats.kill()
    try:
        return ground.brittle.client.post("/runs", json={"flow_name": "hello"})
    finally:
        bring_nats_back(ground)


def bring_nats_back(ground: Ground) -> None:
    ground.brittle_nats.start()
    ground.brittle.wait_healthy()


# In a log -----------------------------------------------------------------------------------------


def worker_without_nats(ground: Ground, problem: Problem) -> Evidence:
    ground.brittle_nats.kill()
    try:
        return line_of(problem, lambda: ground.brittle.log("worker-1"))
    finally:
        bring_nats_back(ground)


def neither_nats_nor_ledger(ground: Ground, problem: Problem) -> Evidence:
    """The run is in the ledger, NATS does not take it, and then the ledger cannot let go of it either."""
    # NATS may have been away a moment ago: only if the service knows it as there does it accept a run.
    hello = {"flow_name": "hello"}
    wait_until(lambda: ground.brittle.client.post("/runs", json=hello).is_success, what="a run accepted")
    before = accepted_run_ids(ground.brittle)
    ground.brittle_nats.pause()
    try:
        with ThreadPoolExecutor(1) as threads:
            answer = threads.submit(ground.brittle.client.post, "/runs", json=hello)
            [run_id] = wait_until(lambda: accepted_run_ids(ground.brittle) - before, what="the run in the ledger")
            with ground.brittle.ledger_locked():
                line = line_of(problem, lambda: ground.brittle.log("runs-api"), run_id=run_id)
            assert answer.result().status_code == httpx.codes.SERVICE_UNAVAILABLE
    finally:
        ground.brittle_nats.resume()
    # The orphan of the table is not lost here: the outbox still has the run, and it is sent.
    [ended] = wait_ended(ground.brittle.client, [run_id], within=60)
    assert ended["status"] == "COMPLETED"
    return line


def unknown_flow(ground: Ground, problem: Problem) -> Evidence:
    run_id = submit(ground.stack.client, "no-such-flow")
    return line_of(problem, lambda: ground.stack.log("worker-1"), run_id=run_id, reason="flow_not_found")


def raising_flow(ground: Ground, problem: Problem) -> Evidence:
    run_id = submit(ground.stack.client, "failing")
    return line_of(problem, lambda: ground.stack.log("worker-1"), run_id=run_id, reason="execution_error")


def refused_end(ground: Ground, problem: Problem) -> Evidence:
    with ground.worker("refused-end") as worker:
        run_id = ground.mark("refused-end", seconds=1.0)
        wait_status(ground.stack.client, run_id, RunStatus.RUNNING)
        with ground.wire.refusing_snapshots():
            line = line_of(problem, lambda: worker.log, run_id=run_id)
        wait_ended(ground.stack.client, [run_id])
    return line


def ack_without_nats(ground: Ground, problem: Problem) -> Evidence:
    run_id = submit(ground.brittle.client, "long", seconds=3)
    wait_status(ground.brittle.client, run_id, RunStatus.RUNNING)
    ground.brittle_nats.kill()
    try:
        return line_of(problem, lambda: ground.brittle.log("worker-1"), run_id=run_id)
    finally:
        bring_nats_back(ground)
        wait_ended(ground.brittle.client, [run_id])


def large_snapshot(ground: Ground, problem: Problem) -> Evidence:
    with ground.worker("large-snapshot", PYOCO_MAX_RUN_SNAPSHOT_BYTES="1024") as worker:
        run_id = submit(ground.stack.client, "crowd", tag="large-snapshot")
        line = line_of(problem, lambda: worker.log, run_id=run_id)
        [ended] = wait_ended(ground.stack.client, [run_id])
    assert ended["status"] == "COMPLETED"
    return line


def refused_dead_letter(ground: Ground, problem: Problem) -> Evidence:
    with ground.wire.refusing_dead_letters():
        run_id = submit(ground.stack.client, "failing")
        line = line_of(problem, lambda: ground.stack.log("worker-1"), run_id=run_id)
    [ended] = wait_ended(ground.stack.client, [run_id])
    assert ended["status"] == "FAILED"
    return line


def job_without_flow(ground: Ground, problem: Problem) -> Evidence:
    run_id = str(uuid.uuid4())
    ground.wire.publish_job(b'{"run_id": "%b"}' % run_id.encode(), tag="default")
    return line_of(problem, lambda: ground.stack.log("worker-1"), run_id=run_id, reason="invalid_job")


def deaf_run(ground: Ground, problem: Problem) -> Evidence:
    with ground.worker("deaf-run", PYOCO_CANCEL_GRACE_PERIOD_SEC="0.3") as worker:
        run_id = ground.mark("deaf-run", seconds=120)
        # Claimed is not begun: a run that is cancelled in between ends without being waited for.
        marks = ground.folder / "marks"
        wait_until(lambda: marks.exists() and "deaf-run" in marks.read_text().split(), what="the run begun")
        ground.stack.client.post(f"/runs/{run_id}/cancel").raise_for_status()
        line = line_of(problem, lambda: worker.log, run_id=run_id)
        [ended] = wait_ended(ground.stack.client, [run_id])
    assert ended["status"] == "CANCELLED"
    return line


def slow_install(ground: Ground, problem: Problem) -> Evidence:
    wheel = build_wheel(ground.folder, "slow-to-install")
    answer = ground.stack.client.post("/wheels", files=upload_of(wheel), data={"tags": "slow-install"})
    answer.raise_for_status()
    settings = {"PYOCO_WHEEL_SYNC_ENABLED": "1", "PYOCO_WHEEL_SYNC_DIR": str(ground.folder / "wheels")}
    with ground.worker("slow-install", **settings, PYOCO_WHEEL_INSTALL_TIMEOUT_SEC="0.01") as worker:
        line = line_of(problem, lambda: worker.log, event="wheel_sync_failed")
        run_id = ground.mark("slow-install", seconds=0.0)
        [ended] = wait_ended(ground.stack.client, [run_id])
    ground.stack.client.delete(f"/wheels/{wheel.name}").raise_for_status()
    assert ended["status"] == "COMPLETED"
    assert wheel.name in line["message"]
    return line


# On stderr ----------------------------------------------------------------------------------------


def log_on_a_full_disk(ground: Ground, problem: Problem) -> Evidence:
    """The process says so once, and goes on with its work."""
    socket, errors = ground.folder / "auth.sock", ground.folder / "stderr"
    own = {
        "PYOCO_LOAD_DOTENV": "0",
        "PYOCO_UDS": str(socket),
        "PYOCO_NATS_URL": ground.stack.nats_url,
        "PYOCO_NATS_NKEY_FILE": str(ground.stack.credentials("auth")),
    }
    with Path("/dev/full").open("wb") as full, errors.open("wb") as stderr:
        auth = subprocess.Popen(
            [sys.executable, "-m", "fleet_auth"], env={**os.environ, **own}, stdout=full, stderr=stderr
        )
    try:
        wait_until(lambda: problem.err_id in errors.read_text(), within=30, what="a word about the log")
        with httpx.Client(
            transport=httpx.HTTPTransport(uds=str(socket)), base_url="http://auth", timeout=30
        ) as client:

            def is_healthy() -> bool:
                # The socket is there a moment before somebody listens.
                with suppress(httpx.ConnectError):
                    return client.get("/health").status_code == httpx.codes.OK
                return False

            wait_until(is_healthy, within=30, what="auth answering")
    finally:
        auth.terminate()
        auth.wait(timeout=30)
    assert errors.read_text().count(problem.err_id) == 1
    return errors.read_text()


def failing(command: str, *arguments: str) -> "Producer":
    def produce(ground: Ground, _: Problem) -> Evidence:
        program = str(Path(sysconfig.get_path("scripts")) / command)
        answer = subprocess.run(
            [program, *arguments], cwd=ground.folder, capture_output=True, text=True, timeout=60, check=False
        )
        assert (answer.returncode, answer.stdout) == (1, "")
        return answer.stderr

    return produce


Producer = Callable[[Ground, Problem], Evidence]
PRODUCERS: dict[Problem, list[Producer]] = {
    Problem.GATEWAY_UNREACHABLE: [failing("pyoco-client", "--server", f"http://127.0.0.1:{free_port()}", "list")],
    Problem.INVALID_REQUEST: [bad_body],
    Problem.NATS_UNAVAILABLE: [submit_without_nats, worker_without_nats],
    Problem.ORPHAN_RUN: [neither_nats_nor_ledger],
    Problem.RUN_NOT_FOUND: [missing_run],
    Problem.FLOW_NOT_FOUND: [unknown_flow],
    Problem.EXECUTION_FAILED: [raising_flow],
    Problem.TERMINAL_WRITE_FAILED: [refused_end],
    Problem.IN_PROGRESS_FAILED: [ack_without_nats],
    Problem.SNAPSHOT_TOO_LARGE: [large_snapshot],
    Problem.DEAD_LETTER_FAILED: [refused_dead_letter],
    Problem.INVALID_JOB: [job_without_flow],
    Problem.LOGGING_FAILED: [log_on_a_full_disk],
    Problem.API_KEY_REQUIRED: [no_key],
    Problem.API_KEY_INVALID: [unknown_key],
    Problem.WORKFLOW_TOO_LARGE: [large_workflow],
    Problem.INVALID_LIST_QUERY: [bad_list_query],
    Problem.INVALID_ARGUMENT: [
        failing("pyoco-worker", "--slots", "many"),
        failing("pyoco-server", "up", "--port", "many"),
        failing("pyoco-client", "get"),
    ],
    Problem.INVALID_WORKERS_REQUEST: [bad_workers_query, bad_worker_patch],
    Problem.WORKER_NOT_FOUND: [
        unknown_worker("PATCH", "/workers/nobody"),
        unknown_worker("GET", "/workers/nobody"),
        unknown_worker("POST", "/workers/nobody/drain"),
        unknown_worker("POST", "/workers/nobody/resume"),
    ],
    Problem.CANCEL_TIMED_OUT: [deaf_run],
    Problem.WHEEL_VERSION_REFUSED: [same_wheel_twice],
    Problem.WHEEL_NOT_FOUND: [missing_wheel],
    Problem.WHEEL_SYNC_FAILED: [slow_install],
}


def test_every_problem_of_the_table_is_caused_here() -> None:
    assert PRODUCERS.keys() == set(Problem)


@pytest.mark.parametrize("problem", [pytest.param(p, id=p.err_id) for p in Problem])
def test_a_problem_is_reported_with_its_ids_where_the_table_says(ground: Ground, problem: Problem) -> None:
    reports = [producer(ground, problem) for producer in PRODUCERS[problem]]
    for evidence in reports:
        match evidence:
            case httpx.Response():
                assert_answer(evidence, problem)
            case str():
                assert problem.err_id in evidence
            case line:
                assert (line["err_id"], line["msg_id"]) == (problem.err_id, problem.msg_id)
                assert line["level"] in ("WARNING", "ERROR")
                assert line["message"] != ""
    # The column "output" of the table: answered over HTTP, or not at all.
    assert any(isinstance(evidence, httpx.Response) for evidence in reports) == (problem.http_status is not None)


def assert_answer(answer: httpx.Response, problem: Problem) -> None:
    body = answer.json()
    assert answer.status_code == problem.http_status, body
    assert body["ok"] is False
    assert body["error"]["code"] == code_of_status(answer.status_code)
    assert body["detail"] == body["error"]["message"] != ""
    meta = body["error"]["meta"]
    assert (meta["err_id"], meta["msg_id"]) == (problem.err_id, problem.msg_id)
    assert meta["retryable"] is problem.retryable
    assert meta["request_id"] == answer.headers["x-request-id"] != ""
