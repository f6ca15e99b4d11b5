"""`get`, `tasks`, `result`, `logs`, `attempts`: everything about one run."""

import time

from ..output import Column, Item, Table
from ..parser import CommandParser, add_output, add_run_id
from ..session import Session
from ..task_table import task_rows, task_table
from ..texts import t
from ..times import ago, clock, duration


def add_get(parser: CommandParser) -> None:
    add_run_id(parser)
    parser.add_argument("--records", action="store_true", help=t("get.records"))
    add_output(parser, "status")


def get(session: Session) -> int:
    run_id = session.run_id(session.args.run_id)
    wants_tasks = session.args.records or session.out.form == "table"
    run = session.client.get_run_with_records(run_id) if wants_tasks else session.client.get_run(run_id)
    session.out.show(run, lambda: show_run(session, run), lambda: [str(run["status"])])
    return 0


def show_run(session: Session, run: Item) -> None:
    out, attempt = session.out, run.get("attempt") or None
    waits = run.get("waiting_detail") or run.get("waiting_reason")
    begun, ended = run.get("start_time"), run.get("end_time")
    out.fields(
        [
            (t("field.run"), run["run_id"]),
            (t("field.flow"), run["flow_name"]),
            (t("field.status"), run["status"]),
            (t("field.waits"), waits),
            (t("field.error"), run.get("error")),
            (t("field.reason"), run.get("reason")),
            (t("field.tag"), run.get("tag")),
            (t("field.tags"), [tag for tag in run.get("tags") or [] if tag != run.get("tag")]),
            (t("field.submitted"), _moment(run.get("submitted_at"))),
            (t("field.started"), _moment(begun)),
            (t("field.duration"), duration(ended - begun) if ended and begun else None),
            (t("field.deadline"), _moment(run.get("deadline_at"))),
            (t("field.worker"), run.get("worker_id")),
            (t("field.attempt"), attempt),
            (t("field.rerun_of"), run.get("rerun_of")),
            (t("field.cancel_reason"), run.get("cancel_reason")),
            (t("field.params"), run.get("params")),
        ],
        state=str(run["status"]),
    )
    records = task_rows(run, now=time.time())
    if records:
        out.heading(t("field.tasks"))
        out.table(task_table(records))


def _moment(at: float | None) -> str | None:
    return None if at is None else f"{clock(at)} ({ago(at)})"


def add_tasks(parser: CommandParser) -> None:
    add_run_id(parser)
    add_output(parser, "status")


def tasks(session: Session) -> int:
    answer = session.client.get_tasks(session.run_id(session.args.run_id))
    session.out.show(
        answer,
        lambda: session.out.table(task_table(task_rows(answer, now=time.time()))),
        lambda: [f"{state}\t{name}" for name, state in answer["tasks"].items()],
    )
    return 0


def add_result(parser: CommandParser) -> None:
    add_run_id(parser)
    parser.add_argument("--partial", action="store_true", help=t("result.partial"))
    add_output(parser)


def result(session: Session) -> int:
    run_id = session.run_id(session.args.run_id)
    answer = session.client.get_result(run_id, partial=session.args.partial or None)

    def shown() -> None:
        out = session.out
        out.fields(
            [
                (t("field.status"), answer["status"]),
                (t("field.result"), answer["result"]),
                (t("field.error"), answer.get("error")),
                *((name, output) for name, output in (answer.get("outputs") or {}).items()),
            ],
            state=answer["status"],
        )
        if answer.get("truncated"):
            out.note(t("result.truncated"))

    session.out.show(answer, shown)
    return 0


def add_logs(parser: CommandParser) -> None:
    add_run_id(parser)
    parser.add_argument("-f", "--follow", action="store_true", help=t("logs.follow"))
    parser.add_argument("--task", help=t("logs.task"))
    parser.add_argument("--stream", choices=("stdout", "stderr"), help=t("logs.stream"))
    parser.add_argument("--attempt", type=int, metavar="N", help=t("logs.attempt"))
    parser.add_argument("--no-prefix", action="store_true", help=t("logs.no_prefix"))
    parser.add_argument("--output", choices=("text", "json"), help=t("logs.output"))


def logs(session: Session) -> int:
    from ..follow import log_events, prefixed

    args, out = session.args, session.out
    run_id = session.run_id(args.run_id)
    chosen = {
        name: value
        for name, value in (("task", args.task), ("stream", args.stream), ("attempt", args.attempt))
        if value is not None
    }
    if args.output != "json" and not args.follow:
        out.raw(session.client.get_logs(run_id, prefix=not args.no_prefix, **chosen))
        return 0
    if args.output == "json":
        for event in log_events(session, run_id, chosen, to_the_end=args.follow):
            out.json(event)
        return 0
    for line in prefixed(log_events(session, run_id, chosen, to_the_end=True), with_prefix=not args.no_prefix):
        out.line(line)
    return 0


def add_attempts(parser: CommandParser) -> None:
    add_run_id(parser)
    add_output(parser)


def attempts(session: Session) -> int:
    answer = session.client.get_attempts(session.run_id(session.args.run_id))

    def shown() -> None:
        session.out.table(
            Table(
                answer["attempts"],
                [
                    Column(t("column.attempt"), lambda one: one["attempt"], is_number=True),
                    Column(t("column.outcome"), lambda one: one["outcome"] or "RUNNING", is_state=True),
                    Column(t("column.worker"), lambda one: one["worker_id"]),
                    Column(t("column.started"), lambda one: clock(one["started_at"])),
                    Column(t("column.duration"), _attempt_length, is_number=True),
                    Column(t("column.error"), lambda one: one["error"]),
                ],
                empty=t("attempts.none"),
                wraps=True,
            )
        )
        if answer["decisions"]:
            session.out.heading(t("attempts.decisions"))
            session.out.table(
                Table(
                    answer["decisions"],
                    [
                        Column(t("column.at"), lambda one: clock(one["at"])),
                        Column(t("column.decision"), lambda one: one["kind"]),
                        Column(t("column.attempt"), lambda one: one["attempt"], is_number=True),
                        Column(t("column.reason"), lambda one: one["reason"]),
                    ],
                    wraps=True,
                )
            )

    session.out.show(answer, shown)
    return 0


def _attempt_length(one: Item) -> str:
    if one["started_at"] is None:
        return "–"
    return duration((time.time() if one["ended_at"] is None else one["ended_at"]) - one["started_at"])
