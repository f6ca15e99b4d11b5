"""The result of a run: the flow's result and the output of each task."""

from typing import Any

from pydantic_core import to_json

from fleet_contracts.snapshot import RunSnapshot

from ..errors import RunNotFinished
from ..ledger.rows import RunState

# Of a run that is shown among others; a larger one is read alone.
_LARGEST_BYTES = 256 * 1024
_TOO_LARGE: dict[str, Any] = {"result": None, "outputs": {}, "truncated": False, "too_large": True}


def result_of(snapshot: RunSnapshot, *, partial: bool) -> dict[str, Any]:
    """The results of a run; RunNotFinished if it has not ended, unless `partial` results are wanted."""
    if not snapshot.is_terminal and not partial:
        raise RunNotFinished(
            f"The run is {snapshot.status}; ask again when it has ended, or add partial=1 for what there is.",
            run_id=snapshot.run_id,
            run_status=snapshot.status,
        )
    return {
        "run_id": snapshot.run_id,
        "status": snapshot.status,
        "result": snapshot.result,
        "outputs": {
            task: record["output"]
            for task, record in snapshot.task_records.items()
            if isinstance(record, dict) and "output" in record
        },
        # A worker marks a result that was too large for the snapshot.
        "truncated": snapshot.task_records_truncated or snapshot.result_truncated,
        "error": snapshot.error,
    }


def shown(state: RunState) -> bytes:
    """The JSON of a run among others: its state, with the beginning of its error."""
    return to_json(_summary(state), inf_nan_mode="null")


def shown_with_result(state: RunState, snapshot: RunSnapshot) -> bytes:
    """The same of a run that has ended, with its whole error and its result unless they are too large."""
    summary = _summary(state)
    result = result_of(snapshot, partial=True)
    # The ledger may know the end, and the snapshot not.
    end = {"status": state.status, "error": result["error"] or state.error, "too_large": False}
    body = to_json({**summary, **result, **end}, inf_nan_mode="null")
    return body if len(body) <= _LARGEST_BYTES else to_json({**summary, **_TOO_LARGE}, inf_nan_mode="null")


def _summary(state: RunState) -> dict[str, Any]:
    return {**state._asdict(), "ended": state.status.is_terminal}
