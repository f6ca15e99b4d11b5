"""Three NATS servers, two replicas of each service, three workers: any one of them is lost, and no accepted run is.

Each test breaks something under load, and then holds every answer against the ledger: what was accepted has
completed, what was refused is not there.
"""

import json
import subprocess
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from threading import Event
from typing import Any

import httpx
import pytest

from fleet_contracts.status import RunStatus
from fleet_testkit.chaos.load import Load
from fleet_testkit.containers.compose import IMAGES_TAG, ROOT, ComposedFleet, run_command
from fleet_testkit.runs import read, submit, wait_ended
from fleet_testkit.waiting import wait_until
from fleet_testkit.wheels import build_wheel, upload_of

# The images may have to be built first, from nothing.
pytestmark = pytest.mark.timeout(1800)

NATS = {"nats-1": "nats", "nats-2": "nats-2", "nats-3": "nats-3"}
SERVICES = ["auth", "runs-api", "workers-api", "wheels-api"]
MARKS = "/data/marks"
# So many requests in a row reach every replica: the gateway takes them in turn.
ENOUGH_FOR_ALL = 8
# Enough for a loaded machine: nothing here is judged by its speed.
DEADLINE_SECONDS = 180.0


class Cluster(ComposedFleet):
    """The names of NATS servers here are their own, not those of their containers."""

    def nats(self, server: str) -> str:
        [container] = self.run("ps", "--all", "--quiet", NATS[server]).split()
        return container

    def ask_nats(self, server: str, path: str) -> str | None:
        try:
            return self.docker("exec", self.nats(server), "wget", "-q", "-O", "-", f"http://127.0.0.1:8222{path}")
        except AssertionError:
            return None

    def streams(self, server: str) -> dict[str, dict[str, Any]] | None:
        """The streams of a server with their consumers, by name, as it reports them; None if it does not answer."""
        said = self.ask_nats(server, "/jsz?accounts=1&streams=1&consumers=1&config=1")
        if said is None:
            return None
        accounts = json.loads(said).get("account_details", [])
        return {stream["name"]: stream for account in accounts for stream in account.get("stream_detail", [])}

    def leader_of(self, stream: str) -> str:
        def look() -> str | None:
            for server in NATS:
                state = (self.streams(server) or {}).get(stream, {})
                if leader := state.get("cluster", {}).get("leader"):
                    return str(leader)
            return None

        return wait_until(look, within=DEADLINE_SECONDS, what=f"a leader of {stream}")

    def is_caught_up(self) -> bool:
        """Every stream has a leader, and that says that both others have all of it."""
        reported = {server: self.streams(server) for server in NATS}
        if any(streams is None for streams in reported.values()):
            return False
        known = {name for streams in reported.values() for name in streams or ()}
        led = {
            name: [replica["current"] for replica in stream["cluster"].get("replicas", [])]
            for server, streams in reported.items()
            for name, stream in (streams or {}).items()
            if stream["cluster"].get("leader") == server
        }
        return led.keys() == known and all(current == [True, True] for current in led.values())

    def wait_caught_up(self) -> None:
        wait_until(self.is_caught_up, within=DEADLINE_SECONDS, what="all servers of NATS having every stream")

    def wait_whole(self) -> None:
        """Every server of NATS has caught up, and the gateway answers."""
        self.wait_caught_up()
        wait_until(
            lambda: self.client.get("/health").status_code == httpx.codes.OK, within=DEADLINE_SECONDS, what="health"
        )

    def wait_container(self, container: str) -> None:
        wait_until(
            lambda: self.inspect(container)["State"]["Health"]["Status"] == "healthy",
            within=DEADLINE_SECONDS,
            what="a healthy container",
        )

    def marks(self) -> Counter[str]:
        """How often each label was executed, on all workers that live."""
        read = [self.docker("exec", worker, "cat", MARKS) for worker in self.containers("worker")]
        return Counter("".join(read).split())

    def worker_container(self, worker_id: str) -> str:
        """The workers choose their names themselves; what they do is in their logs."""
        for container in self.containers("worker"):
            if f'"{worker_id}"' in self.docker("logs", container):
                return container
        raise AssertionError(f"no container is {worker_id}")

    @contextmanager
    def killed(self, *containers: str) -> Iterator[None]:
        self.docker("kill", *containers)
        try:
            yield
        finally:
            self.docker("start", *containers)

    @contextmanager
    def cut_off(self, container: str, *, alias: str) -> Iterator[None]:
        networks = list(self.inspect(container)["NetworkSettings"]["Networks"])
        for network in networks:
            self.docker("network", "disconnect", network, container)
        try:
            yield
        finally:
            for network in networks:
                self.docker("network", "connect", "--alias", alias, network, container)

    def alone(self) -> ComposedFleet:
        """The same fleet without the layer: one of each."""
        return self.layered(COMPOSE_FILE=str(ROOT / "compose.yaml"))


@pytest.fixture(scope="module")
def cluster(engine: None) -> Iterator[Cluster]:
    files = ("compose.yaml", "compose.cluster.yaml")
    with Cluster(f"{IMAGES_TAG}-cluster", files=files, PYOCO_FLOWS="./tests/flows") as cluster:
        yield cluster


@dataclass
class Trial:
    """One thing that goes wrong, while runs are submitted all the time."""

    cluster: Cluster
    load: Load
    before: set[str]
    capsys: pytest.CaptureFixture[str]

    def more_accepted(self, count: int = 20) -> float:
        """Wait until so many more are accepted; how many seconds it was until the first."""
        begun = time.monotonic()
        wait_until(lambda: self.load.accepted_since(begun), within=DEADLINE_SECONDS, what="an accepted run")
        took = time.monotonic() - begun
        wait_until(lambda: self.load.accepted_since(begun) >= count, within=DEADLINE_SECONDS, what="more of them")
        return took

    def settle(self, what: str, *, also: Sequence[str] = (), **more: str) -> None:
        """Nothing that was accepted is lost, nothing that was refused is left, no run is stuck; then the figures."""
        self.load.stop()
        begun = time.monotonic()
        accepted = set(self.load.run_ids)
        # Also those whose answer was unclear.
        found = {
            run_id: (status, int(attempt))
            for run_id, status, attempt in wait_until(
                self._all_ended, within=DEADLINE_SECONDS, what=f"the end of {len(accepted)} runs"
            )
        }
        more["the last one ended after"] = f"{time.monotonic() - begun:.1f} s"
        assert accepted <= found.keys()
        more["runs begun more than once"] = str(sum(attempt > 1 for _, attempt in found.values()))
        with self.capsys.disabled():
            print(f"\n[figures] {what}: {self.load.figures(**more)}")
        assert Counter(status for status, _ in found.values()) == {"COMPLETED": len(found)}
        # The gateway says the same as the ledger.
        wait_ended(self.cluster.client, self.load.run_ids[-5:], within=DEADLINE_SECONDS)
        assert len(found.keys() - accepted - set(also)) <= len(self.load.unclear)
        for refused in self.load.refused:
            # By a service without NATS, or by the gateway without a verdict from auth: to be tried again either way.
            assert json.loads(refused.body)["error"]["meta"]["retryable"] is True, refused.body

    def runs(self) -> list[list[str]]:
        """Id, status and attempts of every run of this trial, as the ledger has them: all of them in one look."""
        rows = self.cluster.ledger("SELECT run_id, status, attempt FROM runs")
        return [row for row in rows if row[0] not in self.before]

    def _all_ended(self) -> list[list[str]] | None:
        runs = self.runs()
        return runs if all(RunStatus(status).is_terminal for _, status, _ in runs) else None


@pytest.fixture
def trial(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> Iterator[Trial]:
    """Begins with some accepted runs, so that whatever breaks has something to break."""
    cluster.wait_whole()
    before = {run_id for (run_id,) in cluster.ledger("SELECT run_id FROM runs")}
    for worker in cluster.containers("worker"):
        cluster.docker("exec", worker, "sh", "-c", f": > {MARKS}")
    with Load(cluster.url, "marked", {"marks": MARKS, "seconds": 0.05}) as load:
        trial = Trial(cluster, load, before, capsys)
        trial.more_accepted(10)
        yield trial


def test_every_stream_and_queue_is_on_three_servers(cluster: Cluster) -> None:
    cluster.wait_whole()
    streams = cluster.streams("nats-1")
    assert streams
    assert len(streams) == 9
    assert {name: stream["config"]["num_replicas"] for name, stream in streams.items()} == dict.fromkeys(streams, 3)
    [queue] = streams["PYOCO_WORK"]["consumer_detail"]
    assert (queue["name"], len(queue["cluster"]["replicas"])) == ("pyoco_workers_default", 2)
    assert len({worker["worker_id"] for worker in cluster.client.get("/workers").json()}) == 3


def test_nobody_joins_the_cluster_without_its_password(cluster: Cluster) -> None:
    said = cluster.docker(
        "exec",
        cluster.nats("nats-1"),
        "sh",
        "-c",
        # A route that says nothing of a password is not let in.
        "(printf 'CONNECT {}\\r\\nPING\\r\\n'; sleep 1) | (nc nats-2 6222 || busybox nc nats-2 6222)",
    )
    assert "Authorization Violation" in said


def test_kill_9_of_the_leader_of_the_queue(trial: Trial) -> None:
    cluster = trial.cluster
    leader = cluster.leader_of("PYOCO_WORK")
    watched = submit(cluster.client, "marked", marks=MARKS, label="watched", seconds=12.0)
    begun = Event()
    with ThreadPoolExecutor(max_workers=1) as watcher:
        states = watcher.submit(_watch, cluster, watched, begun)
        assert begun.wait(DEADLINE_SECONDS)
        with cluster.killed(cluster.nats(leader)):
            first_after = trial.more_accepted()
            # A watch reports the end, also when messages to it were lost.
            assert states.result(DEADLINE_SECONDS)[-1] == "COMPLETED"
    cluster.wait_caught_up()
    trial.more_accepted()
    trial.settle(
        "the leader of the queue killed", also=[watched], **{"accepting again after": f"{first_after:.1f} s"}
    )


def test_a_nats_server_is_cut_off_from_everybody(trial: Trial) -> None:
    cluster = trial.cluster
    leader = cluster.leader_of("KV_pyoco_runs")
    with cluster.cut_off(cluster.nats(leader), alias=NATS[leader]):
        first_after = trial.more_accepted()
        # Its clients have connected to another one: every replica lists the workers.
        wait_until(lambda: _all_answer(cluster, "/workers"), within=DEADLINE_SECONDS, what="every replica answering")
    cluster.wait_caught_up()
    trial.more_accepted()
    trial.settle("a NATS server cut off", **{"accepting again after": f"{first_after:.1f} s"})


def test_every_service_is_restarted_one_replica_after_the_other(trial: Trial) -> None:
    cluster = trial.cluster
    begun = time.monotonic()
    replicas = [cluster.containers(service) for service in SERVICES]
    # One of each service at a time: each has another one meanwhile.
    for containers in zip(*replicas, strict=True):
        cluster.docker("restart", *containers)
        for container in containers:
            cluster.wait_container(container)
        trial.more_accepted(5)
    trial.settle("all services restarted, one replica after the other", **{"in": f"{time.monotonic() - begun:.0f} s"})
    # Nobody that executes was touched: each run was executed once.
    executed = cluster.marks()
    assert {
        answer.label: executed[answer.label] for answer in trial.load.accepted if executed[answer.label] != 1
    } == {}


def test_kill_9_of_a_worker(trial: Trial) -> None:
    cluster = trial.cluster
    workers = [worker["worker_id"] for worker in cluster.client.get("/workers").json()]
    known = {worker_id: cluster.worker_container(worker_id) for worker_id in workers}
    held = [submit(cluster.client, "marked", marks=MARKS, label=f"held-{n}", seconds=8.0) for n in range(4)]

    def holder() -> str | None:
        running = [run for run_id in held if (run := read(cluster.client, run_id))["status"] == "RUNNING"]
        return str(running[0]["worker_id"]) if running else None

    victim = wait_until(holder, within=DEADLINE_SECONDS, what="a held run")
    with cluster.killed(known[victim]):
        killed_at = time.monotonic()
        runs = [read(cluster.client, run_id) for run_id in held]
        orphans = [run["run_id"] for run in runs if run["status"] == "RUNNING" and run["worker_id"] == victim]
        assert orphans
        wait_until(
            lambda: all(read(cluster.client, run_id)["attempt"] == 2 for run_id in orphans),
            within=DEADLINE_SECONDS,
            what="the takeover",
        )
        took = time.monotonic() - killed_at
        ended = wait_ended(cluster.client, held, within=DEADLINE_SECONDS)
    assert Counter(run["status"] for run in ended) == {"COMPLETED": len(held)}
    cluster.wait_container(known[victim])
    more = {"runs that it held": str(len(orphans)), "all taken over after": f"{took:.1f} s"}
    trial.settle("a worker killed", also=held, **more)


def test_a_change_through_one_replica_is_seen_by_the_other_in_a_moment(cluster: Cluster) -> None:
    cluster.wait_whole()
    worker_id = cluster.client.get("/workers").json()[0]["worker_id"]
    for order, wanted in (("drain", True), ("resume", False)):
        assert cluster.client.post(f"/workers/{worker_id}/{order}").status_code == httpx.codes.OK
        wait_until(
            lambda wanted=wanted: all(_is_draining(cluster, worker_id) is wanted for _ in range(ENOUGH_FOR_ALL)),
            within=DEADLINE_SECONDS,
            what=f"every replica knowing of the {order}",
        )
    run_id = submit(cluster.client, "marked", marks=MARKS, label="at once")
    # From either replica, the moment it is accepted.
    assert {cluster.client.get(f"/runs/{run_id}").status_code for _ in range(ENOUGH_FOR_ALL)} == {httpx.codes.OK}
    wait_ended(cluster.client, [run_id], within=DEADLINE_SECONDS)


def _is_draining(cluster: Cluster, worker_id: str) -> bool:
    return bool(cluster.client.get(f"/workers/{worker_id}").json()["draining"])


def test_without_a_majority_everything_is_refused_until_it_is_back(trial: Trial) -> None:
    cluster = trial.cluster
    with cluster.killed(cluster.nats("nats-2"), cluster.nats("nats-3")):
        refused = len(trial.load.refused)
        wait_until(
            lambda: len(trial.load.refused) >= refused + 10, within=DEADLINE_SECONDS, what="submits being refused"
        )
        # Lists come from the ledger.
        assert cluster.client.get("/runs").status_code == httpx.codes.OK
    first_after = trial.more_accepted()
    trial.settle("no majority for a while", **{"accepting again after": f"{first_after:.1f} s"})


def test_the_services_are_upgraded_one_after_the_other(trial: Trial) -> None:
    """From images of one tag to those of another; what is inside is the same here."""
    cluster = trial.cluster
    after = f"{IMAGES_TAG}-after"

    def nats_started() -> list[str]:
        return [cluster.inspect(cluster.nats(server))["State"]["StartedAt"] for server in NATS]

    for image in (*SERVICES, "gateway", "worker"):
        cluster.docker("tag", f"pyoco-fleet/{image}:{IMAGES_TAG}", f"pyoco-fleet/{image}:{after}")
    before = nats_started()
    begun = time.monotonic()
    cluster.configure(PYOCO_VERSION=after)
    run_command(["ops/upgrade"], cluster.env)
    took = time.monotonic() - begun
    trial.more_accepted()
    images = {cluster.inspect(str(container.ID))["Config"]["Image"] for container in cluster.listed()}
    assert not [image for image in images if image.endswith(f":{IMAGES_TAG}")]
    assert {service: len(cluster.containers(service)) for service in SERVICES} == dict.fromkeys(SERVICES, 2)
    # NATS has gone on.
    assert nats_started() == before
    trial.settle("a cluster upgraded", **{"in": f"{took:.0f} s"})


# The last one: it takes the cluster away.
def test_a_cluster_becomes_one_server_and_that_a_cluster_by_a_backup(cluster: Cluster, tmp_path: Path) -> None:
    def data_of(fleet: ComposedFleet) -> set[str]:
        [nats] = fleet.containers("nats")
        return {mount["Name"] for mount in fleet.inspect(nats)["Mounts"] if mount["Destination"] == "/data"}

    def keys_of(fleet: ComposedFleet) -> list[str]:
        command = ["pyoco-server-admin", "api-key", "list", "--json"]
        listed, _, _ = fleet.compose.exec_in_container(command, "auth")
        return [key["key_id"] for key in json.loads(listed)]

    def comes_back_from(backup: Path, fleet: ComposedFleet, *, copies: int) -> None:
        run_command(["ops/restore", str(backup)], fleet.env)
        streams = cluster.streams("nats-1") or {}
        assert {stream["config"]["num_replicas"] for stream in streams.values()} == {copies}
        assert keys_of(fleet) == keys
        assert fleet.client.get(f"/wheels/{wheel.name}").content == wheel.read_bytes()
        [ended] = wait_ended(fleet.client, [submit(fleet.client, "marked", marks=MARKS, label="back")], within=60)
        assert ended["status"] == "COMPLETED"

    cluster.wait_whole()
    create = ["pyoco-server-admin", "api-key", "create", "--tenant", "acme", "--json"]
    cluster.compose.exec_in_container(create, "auth")
    keys = keys_of(cluster)
    assert len(keys) == 1
    wheel = build_wheel(tmp_path, "kept")
    cluster.client.post("/wheels", files=upload_of(wheel)).raise_for_status()
    tries = (tmp_path / f"backup-{number}" for number in count())
    with cluster.killed(cluster.nats("nats-1")):
        # Whichever server is lost, the next one is asked; streams that it led have no leader for some seconds.
        backup = wait_until(lambda: backed_up(cluster, next(tries)), within=DEADLINE_SECONDS, what="a backup")
    # A server that begins alone must not find what it had in a cluster, nor the other way round.
    assert data_of(cluster) == {f"{cluster.project}_nats-1"}
    cluster.remove()
    alone = cluster.alone()
    try:
        comes_back_from(backup, alone, copies=1)
        assert data_of(alone) == {f"{cluster.project}_nats"}
        of_one = backed_up(alone, next(tries))
    finally:
        # By itself: the volume of a single server is none of the cluster's.
        alone.remove()
    assert of_one is not None
    comes_back_from(of_one, cluster, copies=3)


def backed_up(fleet: ComposedFleet, folder: Path) -> Path | None:
    command = ["ops/backup", str(folder)]
    done = subprocess.run(command, cwd=ROOT, env=fleet.env, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0 or "ERR-PYOCO-0003" in done.stderr, done.stderr
    return None if done.returncode else folder


def _watch(cluster: Cluster, run_id: str, begun: Event) -> list[str]:
    """The states of a run as the watch sends them, until the stream ends."""
    states = []
    with cluster.client.stream("GET", f"/runs/{run_id}/watch", timeout=DEADLINE_SECONDS) as answer:
        for line in answer.iter_lines():
            reported = json.loads(line.removeprefix("data: ")) if line.startswith("data: ") else {}
            if "snapshot" in reported:
                states.append(str(reported["snapshot"]["status"]))
                begun.set()
    return states


def _all_answer(cluster: Cluster, path: str) -> bool:
    """Often enough in a row that every replica was asked."""
    return all(cluster.client.get(path).status_code == httpx.codes.OK for _ in range(ENOUGH_FOR_ALL))
