"""pyoco-client doctor on a whole fleet: what it finds when all is well, and when something is not."""

import json
import os
import time
from collections.abc import Iterator
from typing import Any

import pytest

from fleet_testkit.api_keys import KEY_HEADER, KeyRing
from fleet_testkit.fleet import Fleet
from fleet_testkit.nats_server import NatsServer, free_port
from fleet_testkit.process_pause import pause_process, resume_process
from fleet_testkit.programs import run_program
from fleet_testkit.runs import submit
from fleet_testkit.stack import Stack
from fleet_testkit.waiting import wait_until

pytestmark = pytest.mark.embedded_only("pauses a process, and takes NATS away")

Findings = dict[str, list[dict[str, Any]]]
BEHIND_THE_GATEWAY = {"auth", "runs-api", "workers-api", "wheels-api", "nats", "ledger", "disk"}
LOOKED_AT = {"workers", "flows", "queues", "dead-letters", "clock", "versions"}


def examine(url: str, key: str | None = None) -> tuple[int, Findings]:
    """The exit code, and what was found by check."""
    outside = {name: value for name, value in os.environ.items() if not name.startswith(("PYOCO_", "LC_", "LANG"))}
    env = {**outside, "HOME": "/nonexistent", **({"PYOCO_API_KEY": key} if key else {})}
    done = run_program(["pyoco_fleet.cli.main:run", "doctor", "--server", url, "--json"], env=env)
    assert done.stderr == ""
    answer = json.loads(done.stdout)
    found: Findings = {}
    for finding in answer["findings"]:
        found.setdefault(finding["check"], []).append(finding)
    assert answer["ok"] == (done.returncode == 0)
    return done.returncode, found


def statuses(found: Findings) -> dict[str, set[str]]:
    return {check: {finding["status"] for finding in findings} for check, findings in found.items()}


def not_ok(found: Findings) -> set[str]:
    return {check for check, of_it in statuses(found).items() if of_it != {"ok"}}


@pytest.fixture(scope="module")
def nats(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    server = NatsServer(tmp_path_factory.mktemp("nats"))
    server.start()
    yield server
    server.kill()


@pytest.fixture(scope="module")
def fleet(nats: NatsServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A fleet that no other test has left anything in, with a NATS that a test takes away."""
    with Stack(tmp_path_factory.mktemp("examined") / "data", "--nats-url", nats.url, with_nats=False) as fleet:
        wait_until(lambda: fleet.client.get("/flows").json()["flows"], what="flows offered")
        yield fleet


def test_a_healthy_fleet_has_only_good_findings(fleet: Stack) -> None:
    code, found = examine(fleet.url)
    assert code == 0
    assert found.keys() == {"gateway", "key"} | BEHIND_THE_GATEWAY | LOOKED_AT
    assert not_ok(found) == set(), found
    assert [finding["sentence"] for finding in found["workers"]] == [
        f"tag default: 1 live, {fleet.client.get('/workers').json()[0]['slots']} slots; 0 draining, 0 hidden"
    ]


def test_a_run_whose_tag_no_worker_serves_is_a_problem(fleet: Stack) -> None:
    run_id = submit(fleet.client, "hello", tag="gpu")
    try:
        code, found = examine(fleet.url)
    finally:
        fleet.client.post(f"/runs/{run_id}/cancel")
    assert (code, not_ok(found)) == (1, {"queues"})
    [stuck] = found["queues"]
    assert stuck["sentence"].startswith("tag gpu: waiting runs: 1; no live worker serves tag gpu")
    assert stuck["advice"] == f"pyoco-client list --status PENDING --tag gpu --server {fleet.url}"


def test_a_drained_worker_and_a_dead_letter_are_warnings(fleet: Stack) -> None:
    [worker] = fleet.client.get("/workers").json()
    submit(fleet.client, "failing")
    wait_until(lambda: fleet.client.get("/dlq").json()["total_open"], what="a dead letter")
    fleet.client.post(f"/workers/{worker['worker_id']}/drain")
    try:
        code, found = examine(fleet.url)
    finally:
        fleet.client.post(f"/workers/{worker['worker_id']}/resume")
        fleet.client.delete("/dlq", params={"all": True})
    assert (code, not_ok(found)) == (0, {"workers", "dead-letters"})
    assert found["workers"][0]["advice"].startswith(f"pyoco-client workers resume {worker['worker_id']}")
    assert "failing" in found["dead-letters"][0]["sentence"]


def test_a_service_that_hangs_is_named_and_the_others_are_seen(fleet: Stack) -> None:
    pid = fleet.pid("wheels-api")
    pause_process(pid)
    try:
        begun = time.monotonic()
        code, found = examine(fleet.url)
        seconds = time.monotonic() - begun
    finally:
        resume_process(pid)
        fleet.wait_healthy()
    assert (code, not_ok(found)) == (1, {"wheels-api"})
    assert statuses(found)["wheels-api"] == {"problem"}
    assert seconds < 20


def test_without_a_key_it_says_what_it_could_not_see_and_which_scope_is_needed(guarded: Fleet) -> None:
    code, found = examine(guarded.url)
    assert code == 0
    assert statuses(found)["key"] == {"warning"}
    assert not_ok(found) == {"key", "workers-api", "wheels-api", *LOOKED_AT} - {"clock"}
    assert found["workers"][0]["sentence"] == "not seen: it needs a key with the scope workers:read"
    assert not any(finding["seen"] for finding in found["workers"] + found["workers-api"])


def test_a_wrong_key_is_a_problem(guarded: Fleet) -> None:
    code, found = examine(guarded.url, "pyoco_0123456789abcdef_" + "x" * 43)
    assert code == 1
    assert {check for check, of_it in statuses(found).items() if "problem" in of_it} == {"key"}
    assert not_ok(found) == {"key", "workers-api", "wheels-api", *LOOKED_AT} - {"clock"}


def test_a_key_with_few_scopes_sees_that_services_answer_and_says_what_it_lacks(guarded: Fleet) -> None:
    ring = KeyRing(guarded)
    issued = ring.issue("doctored", ["runs:read"])[KEY_HEADER]
    code, found = examine(guarded.url, issued)
    assert code == 0
    lacking = "admin, metrics:read, wheels:read, workers:read"
    assert found["key"][0]["sentence"].endswith(f"has: runs:read; lacks: {lacking}")
    assert not_ok(found) == {"workers", "flows", "versions"}
    assert found["workers"][0]["sentence"] == "not seen: the key lacks the scope workers:read"


def test_a_key_of_an_operator_says_whose_it_is(guarded: Fleet) -> None:
    key = KeyRing(guarded).issue("doctored", ["admin"])[KEY_HEADER]
    _, found = examine(guarded.url, key)
    assert found["key"][0]["sentence"].endswith("of the tenant doctored has the scopes admin")
    # It has no worker.
    assert found["workers"][0]["status"] == "problem"


def test_where_nothing_listens_only_that_is_said() -> None:
    code, found = examine(f"http://127.0.0.1:{free_port()}")
    assert code == 1
    assert statuses(found) == {"gateway": {"problem"}, "fleet": {"warning"}}
    assert not found["fleet"][0]["seen"]


def test_without_nats_what_needs_it_is_not_called_good(fleet: Stack, nats: NatsServer) -> None:
    nats.kill()
    wait_until(lambda: "nats" in fleet.client.get("/health").json()["waiting_for"], what="the outage noticed")
    code, found = examine(fleet.url)
    assert code == 1
    assert statuses(found)["nats"] == {"problem"}
    assert not_ok(found) >= {"nats", "workers-api", "wheels-api", "workers", "flows", "versions"}
    assert [finding["seen"] for finding in (*found["workers"], *found["flows"])] == [False, False]
    assert not_ok(found).isdisjoint({"gateway", "runs-api", "ledger", "disk", "queues", "clock"})
