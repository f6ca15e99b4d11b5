"""What a flow returns: the output of its last task, or of each task that nothing follows."""

from collections.abc import Mapping
from typing import Any

from pyoco import Flow
from pyoco.core.models import TaskRecord


def result_of(flow: Flow, records: Mapping[str, TaskRecord]) -> Any:
    if flow.has_control_flow():
        return _output_of_the_latest(records)
    # A task may be part of other flows as well: only what follows in this one counts.
    last = sorted(task.name for task in flow.tasks if task.dependents.isdisjoint(flow.tasks))
    if len(last) == 1:
        return records[last[0]].output
    return {name: records[name].output for name in last} or None


def _output_of_the_latest(records: Mapping[str, TaskRecord]) -> Any:
    """Such a flow runs one task after another, and which one is the last shows only then."""
    ended = [record for record in records.values() if record.ended_at is not None]
    return max(ended, key=lambda record: record.ended_at).output if ended else None
