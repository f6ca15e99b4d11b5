"""What a snapshot changes in the ledger: attempts never fall, an end is an end, old news is ignored."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet_contracts.snapshot import RunSnapshot
from fleet_contracts.status import RunStatus
from fleet_runs_api.fold.rules import Change
from fleet_runs_api.fold.rules import fold as fold_at
from fleet_runs_api.ledger.rows import Known

NOW = 1000.0


def snapshot(status: RunStatus, *, attempt: int = 0, error: str | None = None) -> RunSnapshot:
    return RunSnapshot(
        run_id="r",
        flow_name="f",
        status=status,
        heartbeat_at=2.0,
        updated_at=3.0,
        attempt=attempt,
        worker_id="w" if status is RunStatus.RUNNING else None,
        error=error,
    )


def fold(known: Known, seen: RunSnapshot, revision: int) -> Change | None:
    return fold_at(known, seen, revision, now=NOW)


def test_a_claim_is_recorded() -> None:
    change = fold(Known(RunStatus.PENDING, 0, 0), snapshot(RunStatus.RUNNING, attempt=1), 7)
    assert change is not None
    assert (change.status, change.attempt, change.revision, change.worker_id) == (RunStatus.RUNNING, 1, 7, "w")


def test_the_first_pending_snapshot_is_no_news() -> None:
    assert fold(Known(RunStatus.PENDING, 0, 0), snapshot(RunStatus.PENDING), 1) is None


def test_a_run_handed_back_is_pending_again_with_its_attempts_kept() -> None:
    change = fold(Known(RunStatus.RUNNING, 2, 5), snapshot(RunStatus.PENDING, attempt=2), 6)
    assert change is not None
    assert (change.status, change.attempt) == (RunStatus.PENDING, 2)


def test_a_peer_that_counts_no_attempts_is_in_its_first() -> None:
    change = fold(Known(RunStatus.PENDING, 0, 0), snapshot(RunStatus.RUNNING), 1)
    assert change is not None
    assert change.attempt == 1


def test_a_long_error_is_cut_in_the_list_row() -> None:
    change = fold(Known(RunStatus.RUNNING, 1, 1), snapshot(RunStatus.FAILED, attempt=1, error="x" * 9000), 2)
    assert change is not None
    assert change.error is not None
    assert len(change.error) == 2000
    assert change.finished_at == 3.0


def test_nobody_but_the_ledger_makes_an_ended_run_go_on() -> None:
    ended = Known(RunStatus.FAILED, 1, 5)
    seen = snapshot(RunStatus.PENDING, attempt=1).model_copy(update={"reopened": 1})
    assert fold(ended, seen, 6) is None
    reopened = Known(RunStatus.PENDING, 1, 5, reopened=1)
    claimed = snapshot(RunStatus.RUNNING, attempt=2).model_copy(update={"reopened": 1})
    assert fold(reopened, claimed, 6) is not None


@pytest.mark.parametrize(
    "forged",
    [{"reopened": 1}, {"attempt": 2**31 - 1}, {"not_before": NOW + 1e6}],
    ids=["reopened", "attempt", "wait"],
)
def test_what_would_keep_a_run_from_ending_is_not_believed(forged: dict[str, Any]) -> None:
    running = Known(RunStatus.RUNNING, 1, 5)
    assert fold(running, snapshot(RunStatus.PENDING, attempt=1).model_copy(update=forged), 6) is None


def test_an_end_in_the_future_is_an_end_now() -> None:
    ended = snapshot(RunStatus.COMPLETED, attempt=1).model_copy(update={"end_time": NOW + 1e9})
    change = fold(Known(RunStatus.RUNNING, 1, 5), ended, 6)
    assert change is not None
    assert change.finished_at == NOW


NEWS = st.tuples(st.sampled_from(RunStatus), st.integers(0, 5), st.integers(1, 30))


@given(st.lists(NEWS, max_size=30))
def test_whatever_order_news_arrives_in_nothing_goes_backwards(news: list[tuple[RunStatus, int, int]]) -> None:
    known = Known(RunStatus.PENDING, 0, 0)
    for status, attempt, revision in news:
        change = fold(known, snapshot(status, attempt=attempt), revision)
        if change is None:
            continue
        assert not known.status.is_terminal
        assert change.attempt >= known.attempt
        assert change.revision > known.revision
        known = Known(change.status, change.attempt, change.revision)
