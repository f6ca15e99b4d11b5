"""The result of a run: the flow's result and the output of each task."""

from typing import Any

from fleet_contracts.snapshot import RunSnapshot

from ..errors import RunNotFinished


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
