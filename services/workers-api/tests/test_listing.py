"""The rules of the list of workers, without NATS and without a clock."""

import pytest

from fleet_contracts.status import WorkerState
from fleet_contracts.worker_record import WorkerRecord
from fleet_workers_api.listing import Selection, WorkerScope, select_workers

NOW = 1_000_000.0
TIMEOUT = 20.0


def worker(
    worker_id: str, *, state: WorkerState = WorkerState.IDLE, age: float = 1.0, hidden: bool = False
) -> WorkerRecord:
    return WorkerRecord(
        worker_id=worker_id,
        instance_id=f"{worker_id}-1",
        state=state,
        hidden=hidden,
        last_seen_at=NOW - age,
        last_heartbeat_at=NOW - age,
    )


FLEET = [
    worker("idle", age=3),
    worker("running", state=WorkerState.RUNNING, age=1),
    worker("silent", state=WorkerState.RUNNING, age=21),
    worker("stopped", state=WorkerState.STOPPED_GRACEFUL, age=500),
    worker("hidden", age=2, hidden=True),
]


def listed(selection: Selection) -> list[tuple[str, str]]:
    selected = select_workers(FLEET, selection, now=NOW, disconnect_timeout_sec=TIMEOUT)
    return [(record.worker_id, state.value) for record, state in selected]


def test_by_default_the_living_and_visible_are_listed_the_one_seen_last_first() -> None:
    assert listed(Selection()) == [("running", "RUNNING"), ("idle", "IDLE")]


def test_all_shows_silent_workers_as_disconnected_but_stopped_ones_as_stopped() -> None:
    assert listed(Selection(scope=WorkerScope.ALL)) == [
        ("running", "RUNNING"),
        ("idle", "IDLE"),
        ("silent", "DISCONNECTED"),
        ("stopped", "STOPPED_GRACEFUL"),
    ]


def test_hidden_workers_are_listed_on_demand() -> None:
    assert ("hidden", "IDLE") in listed(Selection(include_hidden=True))


@pytest.mark.parametrize(
    ("state", "active", "all_of_them"),
    [
        (WorkerState.RUNNING, ["running"], ["running"]),
        (WorkerState.IDLE, ["idle"], ["idle"]),
        (WorkerState.DISCONNECTED, [], ["silent"]),
        (WorkerState.STOPPED_GRACEFUL, [], ["stopped"]),
    ],
)
def test_a_state_asked_for_is_looked_for_in_the_scope(
    state: WorkerState, active: list[str], all_of_them: list[str]
) -> None:
    assert [worker_id for worker_id, _ in listed(Selection(state=state))] == active
    assert [worker_id for worker_id, _ in listed(Selection(scope=WorkerScope.ALL, state=state))] == all_of_them


def test_the_limit_keeps_those_seen_last() -> None:
    assert listed(Selection(scope=WorkerScope.ALL, limit=1)) == [("running", "RUNNING")]


def test_a_worker_is_connected_until_the_timeout_has_passed() -> None:
    at_the_edge = worker("edge", age=TIMEOUT)
    [(_, state)] = select_workers([at_the_edge], Selection(), now=NOW, disconnect_timeout_sec=TIMEOUT)
    assert state is WorkerState.IDLE
