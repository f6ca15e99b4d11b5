"""What the fleet answers, as objects. Fields that are not known here are kept."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from html import escape
from typing import Any

from pydantic import BaseModel, ConfigDict

from . import html

ENDED = frozenset({"COMPLETED", "FAILED", "CANCELLED"})


class Model(BaseModel):
    """Shows itself by its own fields that say something; all fields are there, also those that are not known here."""

    model_config = ConfigDict(extra="allow")

    def __repr_args__(self) -> Iterator[tuple[str, Any]]:
        for name, field in type(self).model_fields.items():
            value = getattr(self, name)
            if value != field.get_default(call_default_factory=True) and not _is_deep(value):
                yield name, value

    def _repr_html_(self) -> str:
        return html.of_fields(self.__repr_args__())


def _is_deep(value: Any) -> bool:
    """An object or a list of objects, too long to be shown within others."""
    inside = value if isinstance(value, list) else value.values() if isinstance(value, dict) else ()
    return isinstance(value, BaseModel) or any(isinstance(one, dict | list | BaseModel) for one in inside)


class TaskRecord(Model):
    state: str
    started_at: float | None = None
    ended_at: float | None = None
    duration_ms: float | None = None
    error: str | None = None
    traceback: str | None = None
    inputs: Any = None
    output: Any = None


class RunState(Model):
    """A run at one moment."""

    run_id: str
    flow_name: str | None = None
    status: str
    params: dict[str, Any] | None = None
    tag: str | None = None
    tags: list[str] = []
    tasks: dict[str, str] = {}
    task_records: dict[str, TaskRecord] = {}
    attempt: int = 0
    failures: int = 0
    worker_id: str | None = None
    error: str | None = None
    reason: str | None = None
    waiting_reason: str | None = None
    waiting_detail: str | None = None
    submitted_at: float | None = None
    start_time: float | None = None
    end_time: float | None = None
    updated_at: float | None = None
    rerun_of: str | None = None

    def _repr_html_(self) -> str:
        rows = {
            "run": f"<code>{escape(self.run_id)}</code>",
            "flow": escape(self.flow_name or ""),
            "status": html.status(self.status),
        }
        if self.start_time and self.end_time:
            rows["took"] = f"{self.end_time - self.start_time:.2f} s"
        if self.waiting_detail:
            rows["waits"] = escape(self.waiting_detail)
        if self.error:
            rows["error"] = f"<code>{escape(self.error)}</code>"
        if self.tasks:
            rows["tasks"] = " · ".join(f"{escape(name)} {html.status(at)}" for name, at in self.tasks.items())
        if self.updated_at:
            rows["as of"] = clock(self.updated_at)
        return html.table(rows)

    @property
    def ended(self) -> bool:
        return self.status in ENDED

    @property
    def failed_task(self) -> tuple[str | None, TaskRecord | None]:
        """The task that failed first, and its record."""
        failed = [(name, record) for name, record in self.task_records.items() if record.state == "FAILED"]
        if failed:
            return min(failed, key=lambda found: found[1].ended_at or 0.0)
        return next((name for name, state in self.tasks.items() if state == "FAILED"), None), None


class Attempt(Model):
    attempt: int
    outcome: str | None
    worker_id: str | None = None
    started_at: float | None = None
    ended_at: float | None = None
    error: str | None = None


class Decision(Model):
    at: float
    kind: str
    attempt: int
    reason: str


class LogLine(Model):
    at: float
    text: str
    task: str | None = None
    stream: str | None = None
    level: str | None = None
    attempt: int | None = None


class FlowInfo(Model):
    """A flow that live workers offer."""

    name: str
    description: str | None = None
    tags: list[str] = []
    workers: int = 0
    versions: list[str] = []
    params_schema: dict[str, Any] | None = None
    graph: dict[str, Any] | None = None


class WorkerInfo(Model):
    worker_id: str
    state: str
    tags: list[str] = []
    slots: int = 1
    hidden: bool = False
    draining: bool = False
    last_seen_at: float | None = None
    current_run_ids: list[str] = []


class Wheel(Model):
    name: str
    size_bytes: int | None = None
    modified: float | None = None
    sha256_hex: str | None = None
    tags: list[str] = []


class WheelEvent(Model):
    occurred_at: float
    action: str
    wheel_name: str
    tags: list[str] = []


class DeadLetter(Model):
    """A run that failed for good, or a message that was no valid job."""

    id: int
    run_id: str | None = None
    flow_name: str | None = None
    tag: str | None = None
    reason: str
    error: str | None = None
    at: float
    state: str


class DeadLetterGroup(Model):
    fingerprint: str
    reason: str
    flow_name: str | None = None
    error_type: str
    error: str | None = None
    total: int
    first_at: float
    last_at: float


class SkippedLetter(Model):
    id: int
    reason: str
    detail: str


class Requeued(Model):
    """How many runs of dead letters wait again, and which letters were left as they are."""

    requeued: int
    skipped: list[SkippedLetter] = []
    last_due_at: float | None = None


class Why(Model):
    """Why a run is where it is: sentences for people, and what they are made of."""

    run: RunState
    attempts: list[Attempt]
    decisions: list[Decision]
    sentences: list[str]

    def __str__(self) -> str:
        return "\n".join(self.sentences)

    def __repr__(self) -> str:
        return f"<Why: {self.sentences[0]}>"

    def _repr_html_(self) -> str:
        return html.of_lines(self.sentences)


def explain(run: RunState, attempts: Sequence[Attempt], decisions: Sequence[Decision]) -> Why:
    said = [_opening(run)]
    if run.status == "FAILED" or (run.error and not run.ended):
        task, _ = run.failed_task
        said.append((f"The task {task} failed: " if task else "The error: ") + str(run.error or run.reason))
    said += [
        f"Attempt {attempt.attempt} on {attempt.worker_id or 'no worker'}: {attempt.outcome or 'under way'}"
        + (f" ({attempt.error})" if attempt.error else "")
        for attempt in attempts
    ]
    said += [f"{clock(decision.at)} {decision.kind}: {decision.reason}" for decision in decisions]
    return Why(run=run, attempts=list(attempts), decisions=list(decisions), sentences=said)


def _opening(run: RunState) -> str:
    name = f"The run {run.run_id} of the flow {run.flow_name} is {run.status}"
    if run.waiting_detail:
        return f"{name}: {run.waiting_detail}."
    if run.status == "RUNNING":
        return f"{name} on the worker {run.worker_id}, attempt {run.attempt}."
    return f"{name} ({run.reason})." if run.reason else f"{name}."


def clock(moment: float) -> str:
    return datetime.fromtimestamp(moment, UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S")
