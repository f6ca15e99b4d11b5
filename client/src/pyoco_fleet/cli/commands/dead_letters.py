"""`dlq` and `requeue`: runs that failed for good."""

import argparse
from collections.abc import Callable
from operator import itemgetter
from typing import Any

from ..errors import CommandFailed, InvalidArgument
from ..output import SHORT_ID, Column, Item, Table, telling_length
from ..parser import CommandParser, add_action, add_common_options, add_output
from ..session import Session
from ..texts import t
from ..times import ago, clock, moment

_EXAMPLE = "requeue --flow etl --rate 5"
_EXAMPLES = {"list": " --flow etl", "show": " 7", "requeue": " --flow etl --rate 5", "delete": " --flow etl"}
_DEFAULT_RATE = 10.0
_SHORT_FINGERPRINT, _FINGERPRINT = 8, 32
# As many groups as one answer has.
_MOST_GROUPS = 200


def add_dlq(parser: CommandParser) -> None:
    actions = parser.add_subparsers(
        dest="action", metavar="list|groups|show|requeue|delete", required=True, parser_class=CommandParser
    )
    for name, fill in (
        ("list", _add_list),
        ("groups", _add_groups),
        ("show", _add_show),
        ("requeue", add_requeue),
        ("delete", _add_delete),
    ):
        example = f"dlq {name}{_EXAMPLES.get(name, '')}"
        action = add_action(actions, parser, name, t(f"dlq.{name}"), example)
        fill(action)
        add_common_options(action)


def _add_criteria(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--flow", metavar="FLOW", help=t("dlq.flow"))
    add("--reason", metavar="REASON", help=t("dlq.reason"))
    add("--tag", metavar="TAG", help=t("dlq.tag"))
    add("--run-id", metavar="RUN_ID", help=t("dlq.run_id"))
    add("--fingerprint", metavar="HEX", help=t("dlq.fingerprint"))
    add("--since", metavar="TIME", help=t("dlq.since"))
    add("--until", metavar="TIME", help=t("dlq.until"))


def _criteria(session: Session) -> dict[str, Any]:
    args = session.args
    given: dict[str, Any] = {name: getattr(args, name) for name in ("flow", "reason", "tag")}
    given["run_id"] = None if args.run_id is None else session.run_id(args.run_id)
    given["fingerprint"] = args.fingerprint and _fingerprint(session, args.fingerprint.lower())
    for name in ("since", "until"):
        text = getattr(args, name)
        given[name] = None if text is None else moment(text, f"--{name}")
    return {name: value for name, value in given.items() if value is not None}


def _fingerprint(session: Session, beginning: str) -> str:
    """The fingerprint of an open group that begins like this, if it is only one."""
    if len(beginning) >= _FINGERPRINT:
        return beginning
    groups = session.client.list_dead_letter_groups(limit=_MOST_GROUPS)["items"]
    found = [str(group["fingerprint"]) for group in groups if group["fingerprint"].startswith(beginning)]
    if len(found) != 1:
        known = t("dlq.no_group", beginning=beginning) if not found else t("dlq.groups_like", beginning=beginning)
        raise CommandFailed("\n  ".join([known, *found]), "dlq groups")
    return found[0]


def _add_list(parser: CommandParser) -> None:
    _add_criteria(parser)
    parser.add_argument("--state", choices=("open", "requeued", "all"), help=t("dlq.state"))
    parser.add_argument("--limit", type=int, metavar="N", help=t("dlq.limit"))
    parser.add_argument("--cursor", help=t("list.cursor"))
    add_output(parser)


def _add_groups(parser: CommandParser) -> None:
    parser.add_argument("--limit", type=int, metavar="N", help=t("dlq.limit"))
    add_output(parser)


def _add_show(parser: CommandParser) -> None:
    parser.add_argument("letter_id", type=int, metavar="LETTER_ID", help=t("dlq.letter_id"))
    add_output(parser)


def add_requeue(parser: CommandParser) -> None:
    _add_letters(parser)
    parser.add_argument("--rate", type=float, default=_DEFAULT_RATE, metavar="PER_SEC", help=t("dlq.rate"))
    add_output(parser)


def _add_delete(parser: CommandParser) -> None:
    _add_letters(parser)
    parser.add_argument("--state", choices=("open", "requeued", "all"), help=t("dlq.state"))
    add_output(parser)


def _add_letters(parser: CommandParser) -> None:
    parser.add_argument("letter_ids", type=int, nargs="*", metavar="LETTER_ID", help=t("dlq.letter_ids"))
    parser.add_argument("--all", action="store_true", help=t("dlq.all"))
    _add_criteria(parser)


def dlq(session: Session) -> int:
    actions = {"list": _list, "groups": _groups, "show": _show, "requeue": requeue, "delete": _delete}
    return actions[session.args.action](session)


def _list(session: Session) -> int:
    args = session.args
    page = session.client.list_dead_letters(
        state=args.state, limit=args.limit, cursor=args.cursor, **_criteria(session)
    )
    length = telling_length([letter["run_id"] or "" for letter in page["items"]], SHORT_ID)
    table = Table(
        page["items"],
        [
            Column(t("column.letter"), lambda letter: letter["id"], is_number=True),
            Column(t("column.flow"), lambda letter: letter["flow_name"], style="bold"),
            Column(t("column.reason"), lambda letter: letter["reason"]),
            Column(t("column.state"), lambda letter: letter["state"] if args.state else "", is_state=True),
            Column(t("column.at"), lambda letter: ago(letter["at"])),
            Column(t("column.run"), lambda letter: (letter["run_id"] or "")[:length]),
            Column(t("column.error"), lambda letter: letter["error"]),
        ],
        plain=_plain("id", "flow_name", "reason", "state", "at", "run_id", "error"),
        note=t("dlq.total", total=page["total_open"]),
        empty=t("dlq.none"),
    )
    session.out.show(page, lambda: session.out.table(table))
    return 0


def _groups(session: Session) -> int:
    page = session.client.list_dead_letter_groups(limit=session.args.limit)
    length = telling_length([group["fingerprint"] for group in page["items"]], _SHORT_FINGERPRINT)
    table = Table(
        page["items"],
        [
            Column(t("column.count"), lambda group: group["total"], is_number=True),
            Column(t("column.flow"), lambda group: group["flow_name"], style="bold"),
            Column(t("column.reason"), lambda group: group["reason"]),
            Column(t("column.last"), lambda group: ago(group["last_at"])),
            Column(t("column.fingerprint"), lambda group: group["fingerprint"][:length], style="dim"),
            Column(t("column.error"), lambda group: group["error"]),
        ],
        plain=_plain("total", "flow_name", "reason", "last_at", "fingerprint", "error"),
        note=t("dlq.total", total=page["total_open"]),
        empty=t("dlq.none"),
    )
    session.out.show(page, lambda: session.out.table(table))
    return 0


def _plain(*names: str) -> dict[str, Callable[[Item], object]]:
    """Columns of a pipe: whole ids, and moments in unix seconds."""
    return {name: itemgetter(name) for name in names}


def _show(session: Session) -> int:
    letter = session.client.get_dead_letter(session.args.letter_id)
    run = letter.get("run") or {}

    def shown() -> None:
        session.out.fields(
            [
                (t("field.letter"), letter["id"]),
                (t("field.run"), letter["run_id"]),
                (t("field.flow"), letter["flow_name"]),
                (t("field.tag"), letter["tag"]),
                (t("field.reason"), letter["reason"]),
                (t("field.error"), letter["error"]),
                (t("field.at"), clock(letter["at"])),
                (t("field.state"), letter["state"]),
                (t("field.requeued"), letter["requeued_at"] and clock(letter["requeued_at"])),
                (t("field.run_now"), run.get("status")),
                (t("field.worker"), letter["worker_id"]),
            ],
            state=run.get("status"),
        )
        if letter["state"] == "open":
            session.out.note(t("dlq.try_again", line=session.command(f"requeue {letter['id']}")))

    session.out.show(letter, shown)
    return 0


def requeue(session: Session) -> int:
    if session.args.letter_ids:
        answers = [session.client.requeue_dead_letter(letter_id) for letter_id in session.args.letter_ids]
        data: Any = answers[0] if len(answers) == 1 else answers
        session.out.show(data, lambda: _say_requeued(session, len(answers), []))
        return 0
    criteria = _checked_criteria(session, _EXAMPLE)
    total: dict[str, Any] = {"requeued": 0, "skipped": [], "remaining": 0, "last_due_at": None, "next_cursor": None}
    while True:
        # A request works for seconds only; the rate goes on where the one before has ended.
        answer = session.client.requeue_dead_letters(
            all=session.args.all,
            rate_per_sec=session.args.rate,
            start_at=total["last_due_at"],
            cursor=total["next_cursor"],
            **criteria,
        )
        total = {
            **answer,
            "requeued": total["requeued"] + answer["requeued"],
            "skipped": total["skipped"] + answer["skipped"],
            "last_due_at": answer["last_due_at"] or total["last_due_at"],
        }
        if answer["next_cursor"] is None:
            break
    session.out.show(total, lambda: _say_requeued(session, total["requeued"], total["skipped"]))
    return 0


def _checked_criteria(session: Session, example: str) -> dict[str, Any]:
    criteria = _criteria(session)
    if not criteria and not session.args.all:
        raise InvalidArgument(t("dlq.no_criterion"), example)
    return criteria


def _say_requeued(session: Session, count: int, skipped: list[Item]) -> None:
    session.out.line(t("dlq.requeued", count=count))
    for letter in skipped:
        session.out.line(t("dlq.skipped", id=letter["id"], reason=letter.get("detail") or letter["reason"]))


def _delete(session: Session) -> int:
    args = session.args
    if args.letter_ids:
        answers = [session.client.delete_dead_letter(letter_id) for letter_id in args.letter_ids]
        data: Any = answers[0] if len(answers) == 1 else answers
        count = len(answers)
    else:
        criteria, count, cursor = _checked_criteria(session, "dlq delete --flow etl"), 0, None
        while True:
            data = session.client.delete_dead_letters(all=args.all, state=args.state, cursor=cursor, **criteria)
            count += data["deleted"]
            cursor = data["next_cursor"]
            if cursor is None:
                break
        data = {**data, "deleted": count}
    session.out.show(data, lambda: session.out.line(t("dlq.deleted", count=count)))
    return 0
