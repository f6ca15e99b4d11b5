"""`list` and `list-vnext`: runs."""

import argparse
import time
from collections.abc import Sequence
from typing import Any

from ..errors import InvalidArgument
from ..output import SHORT_ID, Column, Item, Table, telling_length
from ..parser import CommandParser, add_output, words_of
from ..session import Session
from ..texts import t
from ..times import ago, duration, moment

_PAGE = 200
_DEFAULT_LIMIT = 50
_STATUSES = ("PENDING", "RUNNING", "CANCELLING", "COMPLETED", "FAILED", "CANCELLED")
# So that the newest are still on the screen.
_DEFAULT_LIMIT_OF_TERMINAL = 20


def add_list_runs(parser: CommandParser) -> None:
    _add_filters(parser)
    parser.add_argument("--failed", action="store_true", help=t("list.failed"))
    parser.add_argument("--since", metavar="TIME", help=t("list.since"))
    parser.add_argument("--until", metavar="TIME", help=t("list.until"))
    parser.add_argument("--search", metavar="TEXT", help=t("list.search"))
    add_output(parser, "status")


def _add_filters(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--status", metavar="A,B", help=t("list.status"))
    parser.add_argument("--flow", action="append", help=t("list.flow"))
    parser.add_argument("--tag", help=t("list.tag"))
    parser.add_argument("--tags", metavar="A,B", help=t("list.tags"))
    parser.add_argument("--full", action="store_true", help=t("list.full"))
    parser.add_argument("--limit", type=int, metavar="N", help=t("list.limit"))


def _filters(args: argparse.Namespace) -> dict[str, Any]:
    return {
        "status": _statuses(args.status),
        "flow": args.flow,
        "tag": args.tag,
        "tags": words_of(args.tags),
        "full": args.full,
    }


def _statuses(text: str | None) -> list[str] | None:
    statuses = words_of(text) or []
    for status in statuses:
        if status.upper() not in _STATUSES:
            raise InvalidArgument(
                t("usage.choice", name="--status", value=status) + t("usage.known", known=", ".join(_STATUSES)),
                "list --status FAILED,CANCELLED",
            )
    return [status.upper() for status in statuses] or None


def list_runs(session: Session) -> int:
    args = session.args
    filters = _filters(args) | {"q": args.search}
    if args.failed:
        filters["status"] = "FAILED"
    for name, text in (("since", args.since), ("until", args.until)):
        if text is not None:
            filters[name] = moment(text, f"--{name}")
    limit = args.limit
    if limit is None:
        limit = _DEFAULT_LIMIT_OF_TERMINAL if session.out.is_terminal else _DEFAULT_LIMIT
    if limit < 1:
        raise InvalidArgument(t("list.no_limit"), "list --limit 20")
    runs, total, there_is_more = _newest(session, filters, limit)
    note = None
    if there_is_more:
        note = t("list.more", shown=len(runs), total=total) if total else t("list.more_unknown", shown=len(runs))
    _show(session, runs, runs, note)
    return 0


def _newest(session: Session, filters: dict[str, Any], limit: int) -> tuple[list[Item], int | None, bool]:
    """The newest runs that fit, how many there are in all if that is known, and whether there are more."""
    runs: list[Item] = []
    cursor: str | None = ""
    total = None
    while cursor is not None and len(runs) < limit:
        page = session.client.list_runs_vnext(**filters, cursor=cursor, limit=min(limit - len(runs), _PAGE))
        runs += page["items"]
        total = page.get("total") if total is None else total
        cursor = page["next_cursor"]
    return runs, total, cursor is not None


def add_list_vnext(parser: CommandParser) -> None:
    _add_filters(parser)
    parser.add_argument("--updated-after", metavar="TIME", help=t("list.updated_after"))
    parser.add_argument("--cursor", help=t("list.cursor"))
    parser.add_argument("--workflow-yaml-sha256", metavar="SHA256", help=t("list.sha256"))
    add_output(parser, "status")


def list_vnext(session: Session) -> int:
    args = session.args
    cursor = args.cursor
    if cursor is None and args.updated_after is None:
        cursor = ""
    page = session.client.list_runs_vnext(
        **_filters(args),
        limit=args.limit,
        cursor=cursor,
        updated_after=None if args.updated_after is None else moment(args.updated_after, "--updated-after"),
        workflow_yaml_sha256=args.workflow_yaml_sha256,
    )
    _show(session, page, page["items"], None)
    if session.out.form == "table" and page["next_cursor"]:
        session.out.line(f"next_cursor: {page['next_cursor']}")
    return 0


def _show(session: Session, data: Any, runs: Sequence[Item], note: str | None) -> None:
    session.out.show(
        data,
        lambda: session.out.table(run_table(runs, note)),
        lambda: [f"{run['status']}\t{run['run_id']}" for run in runs],
    )


def run_table(runs: Sequence[Item], note: str | None = None) -> Table:
    length = telling_length([run["run_id"] for run in runs], SHORT_ID)
    return Table(
        runs,
        [
            Column(t("column.run"), lambda run: run["run_id"][:length]),
            Column(t("column.flow"), lambda run: run["flow_name"], style="bold"),
            Column(t("column.status"), lambda run: run["status"], is_state=True),
            Column(t("column.submitted"), lambda run: ago(run.get("submitted_at"))),
            Column(t("column.duration"), _length, is_number=True),
            Column(t("column.info"), _info),
        ],
        # As scripts know it from pyoco-server's client.
        plain={name: _getter(name) for name in ("run_id", "status", "flow_name", "tag", "updated_at")},
        note=note,
        empty=t("list.none"),
    )


def _getter(name: str) -> Any:
    return lambda run: run.get(name)


def _length(run: Item) -> str:
    begun, ended = run.get("start_time"), run.get("end_time")
    if begun is None:
        return "–"
    return duration((time.time() if ended is None else ended) - begun)


def _info(run: Item) -> str:
    return str(run.get("error") or run.get("waiting_detail") or run.get("waiting_reason") or "")
