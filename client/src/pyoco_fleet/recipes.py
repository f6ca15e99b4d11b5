"""What takes more than one request, or gives objects: written once, for the blocking and the asynchronous fleet."""

import json
import uuid
from collections.abc import Iterable, Iterator
from typing import Any

from .callers import Json, Steps
from .calls import Call, wire_value
from .errors import FleetError, FlowFailed, ResultTooLarge, RunCancelled
from .models import (
    Attempt,
    DeadLetterGroup,
    Decision,
    FlowInfo,
    Requeued,
    RunState,
    TaskRecord,
    Wheel,
    Why,
    WorkerInfo,
    explain,
)
from .routes import dead_letters, runs, wheels, workers

# The gateway takes 16 MiB, runs-api 1,000 runs and 100,000 values.
_BATCH_RUNS = 1000
_BATCH_BYTES = 8 * 1024 * 1024
_BATCH_VALUES = 90_000


def state(run_id: str) -> Steps[RunState]:
    return RunState.model_validate((yield runs.get_run_with_records(run_id)))


def tasks(run_id: str) -> Steps[dict[str, TaskRecord]]:
    """The tasks of the run with their records."""
    return (yield from state(run_id)).task_records


def attempts(run_id: str) -> Steps[list[Attempt]]:
    """Every attempt of the run."""
    return [Attempt.model_validate(attempt) for attempt in (yield runs.get_attempts(run_id))["attempts"]]


def why(run_id: str) -> Steps[Why]:
    """Why the run is where it is: print it, or look at its fields."""
    found = yield from state(run_id)
    history = yield runs.get_attempts(run_id)
    return explain(
        found,
        [Attempt.model_validate(attempt) for attempt in history["attempts"]],
        [Decision.model_validate(decision) for decision in history["decisions"]],
    )


def result(run_id: str, end: Json) -> Steps[Any]:
    """The result of a run of which a watch has told the end."""
    if end["status"] == "COMPLETED":
        if end.get("too_large") or "result" not in end:
            end = yield runs.get_result(run_id)
        # This may be about outputs of tasks only.
        if end["truncated"] and (yield runs.get_run(run_id)).get("result_truncated"):
            raise ResultTooLarge(
                f"the run {run_id} has completed, but its result was too large to be kept; let the flow return less, "
                "or store it elsewhere and return where",
                run_id=run_id,
            )
        return end["result"]
    # Of a run that does not exist this raises NotFound.
    raise ended_without_result((yield from state(run_id)))


def ended_without_result(run: RunState) -> FleetError:
    snapshot = run.model_dump(mode="json")
    if run.status == "CANCELLED":
        return RunCancelled(f"the run {run.run_id} of the flow {run.flow_name} was cancelled", run_id=run.run_id)
    task, record = run.failed_task
    error = run.error or (record.error if record else None)
    return FlowFailed(
        f"the flow {run.flow_name} failed"
        + (f" in the task {task}" if task else "")
        + f": {error} (run {run.run_id})",
        run_id=run.run_id,
        task=task,
        error=error,
        reason=run.reason,
        traceback=record.traceback if record else None,
        snapshot=snapshot,
    )


def submit_many(submissions: Iterable[Json], key: str | None) -> Steps[list[str]]:
    """The ids in the order of the submissions. An error names the runs of the batches before it."""
    accepted: list[str] = []
    key = key or str(uuid.uuid4())
    try:
        for number, batch in enumerate(batches(submissions)):
            answer = yield runs.submit_runs(batch, idempotency_key=f"{key}:{number}")
            accepted += [run["run_id"] for run in answer["runs"]]
    except Exception as error:
        # Also of the caller's own iterable, which is not read to its end before the first batch is sent.
        if isinstance(error, FleetError):
            error.meta |= {"accepted": accepted, "idempotency_key": key}
        if accepted:
            error.add_note(
                f"{len(accepted)} runs were accepted before; the same map with idempotency_key={key!r} gets their ids"
            )
        raise
    return accepted


def batches(submissions: Iterable[Json]) -> Iterator[list[Json]]:
    """As large as one request may be."""
    batch: list[Json] = []
    size = values = 0
    for submission in submissions:
        added_size, added_values = len(json.dumps(submission)), _values(submission)
        full = len(batch) == _BATCH_RUNS or size + added_size > _BATCH_BYTES or values + added_values > _BATCH_VALUES
        if batch and full:
            yield batch
            batch, size, values = [], 0, 0
        batch.append(submission)
        size += added_size
        values += added_values
    if batch:
        yield batch


def _values(value: Any) -> int:
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + sum(map(_values, inside))


def flows() -> Steps[list[FlowInfo]]:
    """The flows that live workers offer."""
    return [FlowInfo.model_validate(flow) for flow in (yield workers.list_flows())["flows"]]


def flow(name: str) -> Steps[FlowInfo]:
    """One flow with its params, graph and defaults."""
    return FlowInfo.model_validate((yield workers.get_flow(name)))


def list_workers(*, all: bool = False, include_hidden: bool = False) -> Steps[list[WorkerInfo]]:
    """The workers that are there; with `all` also those that were."""
    call = workers.get_workers(scope="all" if all else "active", include_hidden=include_hidden, limit=500)
    return [WorkerInfo.model_validate(worker) for worker in (yield call)]


def drain(worker_id: str) -> Steps[WorkerInfo]:
    """The worker finishes what it has begun and takes nothing new."""
    return WorkerInfo.model_validate((yield workers.drain_worker(worker_id)))


def resume(worker_id: str) -> Steps[WorkerInfo]:
    """The worker takes jobs again."""
    return WorkerInfo.model_validate((yield workers.resume_worker(worker_id)))


def list_wheels() -> Steps[list[Wheel]]:
    """Every registered wheel, by name."""
    return [Wheel.model_validate(wheel) for wheel in (yield wheels.list_wheels())]


def letter_groups(*, limit: int = 50) -> Steps[list[DeadLetterGroup]]:
    """Open dead letters by kind."""
    return [
        DeadLetterGroup.model_validate(group)
        for group in (yield dead_letters.list_dead_letter_groups(limit=limit))["items"]
    ]


def requeue(
    letter_id: int | None = None, *, all: bool = False, rate: float | None = None, **criteria: Any
) -> Steps[Requeued]:
    """New attempts for the runs of dead letters, the oldest first, at most `rate` per second.

    One letter by its id; or many by criteria: flow, reason, tag, run_id, fingerprint, since, until; or `all`.
    """
    if letter_id is not None:
        yield dead_letters.requeue_dead_letter(letter_id)
        return Requeued(requeued=1)
    total = Requeued(requeued=0)
    cursor: str | None = None
    while True:
        part = yield dead_letters.requeue_dead_letters(
            all=all, rate_per_sec=rate, cursor=cursor, start_at=total.last_due_at, **criteria
        )
        done = Requeued.model_validate(part)
        total.requeued += done.requeued
        total.skipped += done.skipped
        total.last_due_at = done.last_due_at or total.last_due_at
        cursor = part["next_cursor"]
        if cursor is None:
            return total


def delete(letter_id: int | None = None, *, all: bool = False, **criteria: Any) -> Steps[int]:
    """Delete dead letters, one by its id or many by criteria; how many there were."""
    if letter_id is not None:
        yield dead_letters.delete_dead_letter(letter_id)
        return 1
    total: int = 0
    cursor: str | None = None
    while True:
        part = yield dead_letters.delete_dead_letters(all=all, cursor=cursor, **criteria)
        total += part["deleted"]
        cursor = part["next_cursor"]
        if cursor is None:
            return total


def run_page(limit: int | None, **filters: Any) -> Any:
    def page(cursor: str | None) -> Call[Json]:
        return runs.list_runs_vnext(cursor=cursor or "", limit=min(limit or 200, 200), **_on_wire(filters))

    return page


def letter_page(limit: int | None, **criteria: Any) -> Any:
    def page(cursor: str | None) -> Call[Json]:
        return dead_letters.list_dead_letters(cursor=cursor, limit=min(limit or 200, 200), **_on_wire(criteria))

    return page


def history_page(limit: int | None, **filters: Any) -> Any:
    def page(cursor: str | None) -> Call[Json]:
        return wheels.list_wheel_history_page(cursor=cursor, limit=min(limit or 500, 500), **filters)

    return page


def _on_wire(values: Json) -> Json:
    return {name: wire_value(value) for name, value in values.items() if value is not None}
