"""`why`: why a run waits, why it has failed, and what one can do."""

from typing import Any

from ..output import Item
from ..parser import CommandParser, add_output, add_run_id
from ..session import Session
from ..texts import t
from ..times import ago, clock, duration

_TRACEBACK_LINES = 12


def add_why(parser: CommandParser) -> None:
    add_run_id(parser)
    add_output(parser)


def why(session: Session) -> int:
    run_id = session.run_id(session.args.run_id)
    run = session.client.get_run_with_records(run_id)
    task, record = _culprit(run)
    answer = {
        "run_id": run_id,
        "status": run["status"],
        "why": _sentence(run, task),
        "waiting_reason": run.get("waiting_reason"),
        "waiting_detail": run.get("waiting_detail"),
        "reason": run.get("reason"),
        "error": run.get("error"),
        "task": task,
        "traceback": record.get("traceback"),
        "earlier_attempts": run.get("earlier_attempts") or [],
        "advice": [session.command(line) for line in _advice(run)],
    }
    session.out.show(answer, lambda: _show(session, answer))
    return 0


def _culprit(run: Item) -> tuple[str | None, Item]:
    """The task that failed."""
    for name, record in (run.get("task_records") or {}).items():
        if record.get("state") == "FAILED":
            return name, record
    return None, {}


def _sentence(run: Item, task: str | None) -> str:
    status, at = run["status"], run.get("end_time")
    match status:
        case "FAILED":
            values: dict[str, Any] = {
                "reason": run.get("reason") or "-",
                "ago": ago(at),
                "attempts": run.get("attempt"),
            }
            return t("why.failed_task", task=task, **values) if task else t("why.failed", **values)
        case "COMPLETED":
            return t("why.completed", ago=ago(at))
        case "CANCELLED":
            return t("why.cancelled", ago=ago(at), by=run.get("cancel_requested_by") or "-")
        case "RUNNING" | "CANCELLING":
            since = run.get("start_time")
            running = [name for name, state in (run.get("tasks") or {}).items() if state == "RUNNING"]
            key = "why.running" if status == "RUNNING" else "why.cancelling"
            return t(key, worker=run.get("worker_id") or "-", since=ago(since), tasks=", ".join(running) or "-")
        case _:
            return str(run.get("waiting_detail") or t("why.pending"))


def _advice(run: Item) -> list[str]:
    run_id = run["run_id"]
    match run["status"]:
        case "FAILED" if run.get("reason") == "flow_not_found":
            return ["flows", "workers", f"rerun {run_id} --follow"]
        case "FAILED":
            return [f"logs {run_id}", f"attempts {run_id}", f"rerun {run_id} --follow"]
        case "PENDING" if run.get("waiting_reason") in ("no_worker", "flow"):
            return ["workers", "flows"]
        case "PENDING" | "RUNNING":
            return [f"watch {run_id}", f"cancel --run-id {run_id}"]
        case "COMPLETED":
            return [f"result {run_id}"]
        case _:
            return [f"attempts {run_id}"]


def _show(session: Session, answer: Item) -> None:
    out = session.out
    out.fields([(t("field.run"), answer["run_id"]), (t("field.status"), answer["status"])], state=answer["status"])
    out.line()
    out.line(answer["why"])
    if answer["error"]:
        out.line(str(answer["error"]))
    if answer["traceback"]:
        out.line()
        for line in str(answer["traceback"]).rstrip().splitlines()[-_TRACEBACK_LINES:]:
            out.line(f"  {line}")
    for attempt in answer["earlier_attempts"]:
        length = (attempt.get("ended_at") or 0) - (attempt.get("started_at") or 0)
        number, at = attempt.get("attempt"), clock(attempt.get("started_at"))
        out.line(t("why.earlier", number=number, at=at, length=duration(length), error=attempt.get("error") or "-"))
    out.heading(t("why.advice"))
    for line in answer["advice"]:
        out.line(f"  {line}")
