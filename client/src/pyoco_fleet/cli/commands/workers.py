"""`workers`: who executes runs; hide, show, drain and resume them."""

from collections.abc import Sequence
from typing import Any

from ..errors import InvalidArgument
from ..output import Column, Item, Table
from ..parser import CommandParser, add_output
from ..session import Session
from ..texts import t
from ..times import ago

_STATES = ("RUNNING", "IDLE", "STOPPED_GRACEFUL", "DISCONNECTED")
_ACTIONS = ("hide", "show", "drain", "resume")
_SHOWN_PLUGINS = 3


def add_workers(parser: CommandParser) -> None:
    add = parser.add_argument
    add("action", nargs="?", choices=_ACTIONS, metavar="|".join(_ACTIONS), help=t("workers.action"))
    add("worker_ids", nargs="*", metavar="WORKER_ID", help=t("workers.worker_id"))
    add("--scope", choices=("active", "all"), default="active", help=t("workers.scope"))
    add("--state", choices=_STATES, help=t("workers.state"))
    add("--include-hidden", action="store_true", help=t("workers.include_hidden"))
    add("--limit", type=int, metavar="N", help=t("workers.limit"))
    add_output(parser, "plugins", "status")


def workers(session: Session) -> int:
    args = session.args
    if args.action is not None:
        return _change(session, args.action, args.worker_ids)
    found = session.client.get_workers(
        scope=args.scope, state=args.state, include_hidden=args.include_hidden or None, limit=args.limit
    )
    if session.out.form == "plugins":
        session.out.table(_plugin_table(found))
        return 0
    session.out.show(
        found,
        lambda: session.out.table(_table(found)),
        lambda: [f"{worker['state']}\t{worker['worker_id']}" for worker in found],
    )
    return 0


def _change(session: Session, action: str, worker_ids: Sequence[str]) -> int:
    if not worker_ids:
        raise InvalidArgument(t("usage.required", names="WORKER_ID"), f"workers {action} vm-1")
    answers = []
    for worker_id in worker_ids:
        match action:
            case "drain":
                answers.append(session.client.drain_worker(worker_id))
            case "resume":
                answers.append(session.client.resume_worker(worker_id))
            case _:
                answers.append(session.client.patch_worker_hidden(worker_id, hidden=action == "hide"))

    def shown() -> None:
        for worker_id in worker_ids:
            session.out.line(t(f"workers.{action}", worker_id=worker_id))

    session.out.show(answers[0] if len(answers) == 1 else answers, shown)
    return 0


def _table(found: Sequence[Item]) -> Table:
    return Table(
        found,
        [
            Column(t("column.worker"), lambda worker: worker["worker_id"], style="bold"),
            Column(t("column.state"), _state, is_state=True),
            Column(t("column.tags"), lambda worker: worker["tags"]),
            Column(t("column.slots"), lambda worker: worker.get("slots"), is_number=True),
            Column(t("column.runs"), lambda worker: len(worker.get("current_run_ids") or []), is_number=True),
            Column(t("column.seen"), lambda worker: ago(worker.get("last_seen_at"))),
            Column(t("column.info"), lambda worker: worker.get("flows_error") or worker.get("stop_reason") or ""),
        ],
        # As scripts know it from pyoco-server's client.
        plain={
            "worker_id": lambda worker: worker.get("worker_id"),
            "state": lambda worker: worker.get("state"),
            "tags": lambda worker: worker.get("tags"),
            "plugins": lambda worker: len(_plugins(worker)),
            "plugin_preview": _preview,
        },
        empty=t("workers.none"),
    )


def _state(worker: Item) -> str:
    marks = [t(f"workers.is_{name}") for name in ("draining", "hidden") if worker.get(name)]
    return " ".join([worker["state"], *marks])


def _plugins(worker: Item) -> list[dict[str, Any]]:
    installed = (worker.get("wheel_sync") or {}).get("installed_wheels") or []
    return [
        {
            "package": wheel.get("package") or wheel.get("package_name"),
            "version": wheel.get("version") or wheel.get("package_version"),
            "wheel_name": wheel.get("name") or wheel.get("wheel_name"),
        }
        for wheel in installed
    ]


def _preview(worker: Item) -> str:
    plugins = _plugins(worker)
    named = [
        f"{plugin['package']}@{plugin['version']}"
        if plugin["package"] and plugin["version"]
        else plugin["wheel_name"]
        for plugin in plugins[:_SHOWN_PLUGINS]
    ]
    more = [f"+{len(plugins) - _SHOWN_PLUGINS}"] if len(plugins) > _SHOWN_PLUGINS else []
    return ", ".join(map(str, named + more))


def _plugin_table(found: Sequence[Item]) -> Table:
    rows = [{**worker, **plugin} for worker in found for plugin in (_plugins(worker) or [{}])]
    names = ("worker_id", "state", "tags", "package", "version", "wheel_name")
    return Table(rows, [Column(name, _getter(name)) for name in names])


def _getter(name: str) -> Any:
    return lambda row: row.get(name)
