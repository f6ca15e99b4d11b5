"""`watch`: a run while it works."""

from typing import Any

from ...routes import runs as routes
from ..output import Item
from ..parser import CommandParser, add_output, add_run_id
from ..session import TERMINAL, Session
from ..texts import t
from ..times import moment


def add_watch(parser: CommandParser) -> None:
    add_run_id(parser)
    add = parser.add_argument
    add("--records", action="store_true", help=t("watch.records"))
    add("--since", metavar="TIME", help=t("watch.since"))
    add("--timeout-sec", type=int, metavar="SEC", help=t("watch.timeout_sec"))
    add("--max-events", type=int, default=0, metavar="N", help=t("watch.max_events"))
    add("--until-terminal", action="store_true", help=t("watch.until_terminal"))
    add_output(parser, "status")


def watch(session: Session) -> int:
    args, out = session.args, session.out
    run_id = session.run_id(args.run_id)
    if out.form == "table":
        from ..follow import follow_visibly, show_end

        run = follow_visibly(session, run_id, with_logs=True, timeout=args.timeout_sec)
        show_end(session, run, session.client.get_result(run_id))
        return 0
    call = routes.watch_run(
        run_id,
        include_records=args.records,
        since=None if args.since is None else moment(args.since, "--since"),
        timeout_sec=args.timeout_sec,
    )
    for number, arrived in enumerate(session.client.stream(call), start=1):
        event = {"event": arrived.event, "data": arrived.data}
        if out.form == "status":
            out.line(_status_line(event))
        else:
            out.json(event)
        if number == args.max_events or (args.until_terminal and _has_ended(event)):
            break
    return 0


def _snapshot(event: Item) -> dict[str, Any]:
    return (event.get("data") or {}).get("snapshot") or {}


def _has_ended(event: Item) -> bool:
    return _snapshot(event).get("status") in TERMINAL


def _status_line(event: Item) -> str:
    data, snapshot = event.get("data") or {}, _snapshot(event)
    at = data.get("ts") or snapshot.get("updated_at") or "-"
    return f"{at}\t{event.get('event')}\t{snapshot.get('status') or '-'}\t{data.get('run_id') or '-'}"
