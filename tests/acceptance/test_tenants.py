"""Tenants apart: whatever a route of runs-api can do with a run or a letter, it does for their owner only."""

import json
import re
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from fleet_runs_api.main import build
from fleet_runs_api.settings import RunsSettings
from fleet_testkit.api_keys import issue_key
from fleet_testkit.fleet import Fleet
from fleet_testkit.runs import submit, wait_ended
from fleet_testkit.waiting import wait_until
from fleet_testkit.worker_process import WorkerProcess

TAG = "tenants"
# A flow of `probes.py`. One that nobody offers would fail, too, but only when nobody has come for some seconds.
FAILS = "choking"
WORKFLOW = b"version: 1\nflow: {graph: go}\ntasks: {go: {callable: 'steps:go'}}\n"

# Every route of the service, from the application itself: one that is added is looked at, or is missed below.
ROUTES = sorted(
    (method.upper(), path) for path, methods in build(RunsSettings()).openapi()["paths"].items() for method in methods
)
# Flows are the fleet's, as workers are: none of it names a run.
OF_FLEET = {("GET", "/flows"), ("GET", "/flows/events"), ("GET", "/flows/{flow_name}")}
OF_ONE = [route for route in ROUTES if "{" in route[1] and route not in OF_FLEET]

# Query and body of routes that need more than the plain request.
VARIANTS: dict[tuple[str, str], list[dict[str, Any]]] = {
    ("GET", "/runs/{run_id}/logs"): [{}, {"follow": 1}],
    ("GET", "/runs/{run_id}/result"): [{}, {"partial": 1}],
}

LISTS = {
    ("GET", "/runs"): [
        {"limit": 200},
        {"include": "full"},
        {"cursor": ""},
        {"updated_after": 0},
        {"q": "{run_id}"},
        {"tag": TAG},
    ],
    ("GET", "/dlq"): [{"limit": 200}, {"state": "all"}, {"run_id": "{run_id}"}, {"tag": TAG}],
    ("GET", "/dlq/groups"): [{}],
}
# Routes about several runs that the caller names: of another tenant's none is shown, and none refused.
OF_MANY: dict[tuple[str, str], dict[str, Any]] = {
    ("GET", "/runs/watch"): {"params": {"ids": "{run_id}"}},
    ("POST", "/runs/watch"): {"json": {"run_ids": ["{run_id}"]}},
    ("POST", "/runs/results"): {"json": {"run_ids": ["{run_id}"]}},
}
SUBMITS: dict[tuple[str, str], dict[str, Any]] = {
    ("POST", "/runs"): {"json": {"flow_name": "hello", "tag": "nobody"}},
    ("POST", "/runs/batch"): {"json": {"runs": [{"flow_name": "hello", "tag": "nobody"}] * 2}},
    ("POST", "/runs/yaml"): {"data": {"flow_name": "hello", "tag": "nobody"}, "files": {"workflow": WORKFLOW}},
}
BY_FILTER = {("DELETE", "/dlq"), ("POST", "/dlq/requeue")}
# About the service and the fleet as a whole; none of it names a run.
OF_ALL = {("GET", "/health"), ("GET", "/ready"), ("GET", "/metrics"), ("GET", "/fleet/metrics")}


@dataclass(frozen=True)
class Owned:
    """A failed run with its dead letter."""

    run_id: str
    letter_id: int

    def in_path(self, path: str) -> str:
        return path.format(run_id=self.run_id, letter_id=self.letter_id)


@pytest.fixture(scope="module")
def owner(guarded: Fleet) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=guarded.url, headers=issue_key(guarded, "owner"), timeout=30) as client:
        yield client


@pytest.fixture(scope="module")
def stranger(guarded: Fleet) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=guarded.url, headers=issue_key(guarded, "stranger"), timeout=30) as client:
        yield client


@pytest.fixture(scope="module")
def worker(guarded: Fleet, flows_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerProcess]:
    folder = tmp_path_factory.mktemp("worker")
    with WorkerProcess(guarded.nats_url, folder, TAG, tag=TAG, flows_dir=flows_dir) as worker:
        yield worker


@pytest.fixture
def owned(owner: httpx.Client, worker: WorkerProcess) -> Owned:
    run_id = submit(owner, FAILS, tag=TAG)
    wait_ended(owner, [run_id])
    [letter] = wait_until(
        lambda: owner.get("/dlq", params={"run_id": run_id}).json()["items"], what="the letter of the run"
    )
    # The letter may be in the ledger a moment before the end of its run is.
    wait_until(
        lambda: owner.get(f"/dlq/{letter['id']}").json()["run"]["status"] == "FAILED",
        what="the ledger knowing the end",
    )
    return Owned(run_id, letter["id"])


def test_every_route_is_looked_at_here() -> None:
    assert {*OF_ONE, *OF_MANY, *LISTS, *SUBMITS, *BY_FILTER, *OF_ALL, *OF_FLEET} == set(ROUTES)


@pytest.mark.parametrize(
    ("method", "path", "query"), [(*route, query) for route in OF_ONE for query in VARIANTS.get(route, [{}])]
)
def test_what_is_another_tenants_does_not_exist(
    owner: httpx.Client, stranger: httpx.Client, owned: Owned, method: str, path: str, query: dict[str, Any]
) -> None:
    refused = stranger.request(method, owned.in_path(path), params=query)
    assert refused.status_code == httpx.codes.NOT_FOUND
    meta = refused.json()["error"]["meta"]
    assert meta.get("err_id") == ("ERR-PYOCO-0005" if "{run_id}" in path else None)
    # Word for word what is said about something that never was, but for the id.
    never = Owned(str(uuid.uuid4()), 999_999_999)
    missing = stranger.request(method, never.in_path(path), params=query)
    assert (missing.status_code, missing.json()["detail"]) == (404, refused.json()["detail"])
    # The same request is fine when its owner sends it, so nothing else was wrong with it.
    answer = owner.request(method, owned.in_path(path), params=query)
    assert answer.is_success, answer.text


@pytest.mark.parametrize("route", OF_MANY)
def test_of_named_runs_those_of_another_tenant_are_not_shown(
    owner: httpx.Client, stranger: httpx.Client, owned: Owned, route: tuple[str, str]
) -> None:
    sent = json.loads(json.dumps(OF_MANY[route]).replace("{run_id}", owned.run_id))
    never = json.loads(json.dumps(OF_MANY[route]).replace("{run_id}", never_id := str(uuid.uuid4())))
    theirs, missing = stranger.request(*route, **sent), stranger.request(*route, **never)
    assert "FAILED" in owner.request(*route, **sent).text
    # Word for word what is said about something that never was, but for the id and the place in the stream.
    words, expected = (re.sub(r"(?m)^id: .*$", "", answer.text) for answer in (theirs, missing))
    assert words.replace(owned.run_id, never_id) == expected


@pytest.mark.parametrize("route", LISTS)
def test_a_list_shows_nothing_of_another_tenant(
    owner: httpx.Client, stranger: httpx.Client, owned: Owned, route: tuple[str, str]
) -> None:
    for query in LISTS[route]:
        asked = {name: owned.in_path(value) if isinstance(value, str) else value for name, value in query.items()}
        mine = owner.request(*route, params=asked)
        theirs = stranger.request(*route, params=asked)
        assert (mine.status_code, theirs.status_code) == (200, 200), asked
        assert FAILS in mine.text, asked
        assert FAILS not in theirs.text, asked
        assert owned.run_id not in theirs.text, asked


@pytest.mark.parametrize("route", sorted(BY_FILTER))
def test_what_is_done_to_many_is_not_done_to_another_tenants(
    owner: httpx.Client, stranger: httpx.Client, owned: Owned, route: tuple[str, str]
) -> None:
    for wanted in ({"filter": {"run_id": owned.run_id}}, {"all": True}):
        sent = {"json": wanted} if route[0] == "POST" else {"params": wanted.get("filter", wanted)}
        answer = stranger.request(*route, **sent)
        assert answer.is_success, answer.text
        assert (answer.json().get("deleted"), answer.json().get("requeued")) in ((0, None), (None, 0))
    letter = owner.get(f"/dlq/{owned.letter_id}").json()
    assert (letter["state"], letter["run"]["status"]) == ("open", "FAILED")


@pytest.mark.parametrize("route", SUBMITS)
def test_an_idempotency_key_is_its_tenants_own(
    owner: httpx.Client, stranger: httpx.Client, route: tuple[str, str]
) -> None:
    key = {"Idempotency-Key": f"tests:{uuid.uuid4().hex}:1760000000000"}
    first, again, other = (
        client.request(*route, headers=key, **SUBMITS[route]) for client in (owner, owner, stranger)
    )
    assert first.is_success, first.text
    assert (again.json(), again.headers["idempotency-replayed"]) == (first.json(), "true")
    assert other.is_success, other.text
    assert "idempotency-replayed" not in other.headers
    assert other.json() != first.json()
