"""`wheels`, `wheel-upload`, `wheel-history`, `wheel-delete`: code for the workers."""

import sys
from pathlib import Path
from typing import Any

from ..errors import InvalidArgument
from ..output import Column, Table
from ..parser import CommandParser, add_output, words_of
from ..session import Session
from ..texts import t
from ..times import ago, clock

_EXAMPLE = "wheel-upload --wheel-file etl-1.0-py3-none-any.whl --tags cpu,linux"


def add_wheels(parser: CommandParser) -> None:
    add_output(parser)


def wheels(session: Session) -> int:
    found = session.client.list_wheels()
    table = Table(
        found,
        [
            Column(t("column.wheel"), lambda wheel: wheel["name"], style="bold"),
            Column(t("column.size"), lambda wheel: _size(wheel["size_bytes"]), is_number=True),
            Column(t("column.tags"), lambda wheel: wheel["tags"] or t("wheels.every_worker")),
            Column(t("column.uploaded"), lambda wheel: ago(wheel["modified"])),
        ],
        empty=t("wheels.none"),
    )
    session.out.show(found, lambda: session.out.table(table))
    return 0


def _size(size: int) -> str:
    return f"{size / 1024:.1f} KiB" if size < 1024 * 1024 else f"{size / 1024 / 1024:.1f} MiB"


def add_wheel_upload(parser: CommandParser) -> None:
    add = parser.add_argument
    add("file", nargs="?", metavar="FILE", help=t("wheel_upload.file"))
    add("--wheel-file", metavar="FILE", help=t("wheel_upload.wheel_file"))
    add("--tags", metavar="A,B", help=t("wheel_upload.tags"))
    add("--replace", dest="replace", action="store_true", default=True, help=t("wheel_upload.replace"))
    add("--no-replace", dest="replace", action="store_false", help=t("wheel_upload.no_replace"))
    add("--preflight", choices=("strict", "warn", "off"), default="warn", help=t("wheel_upload.preflight"))
    add("--allow-no-entry-points", action="store_true", help=t("wheel_upload.allow_no_entry_points"))
    add("--allow-missing-usage-doc", action="store_true", help=t("wheel_upload.allow_missing_usage_doc"))
    add_output(parser)


def wheel_upload(session: Session) -> int:
    args = session.args
    name = args.wheel_file or args.file
    if name is None:
        raise InvalidArgument(t("usage.required", names="FILE"), _EXAMPLE)
    path = Path(name)
    if not path.is_file():
        raise InvalidArgument(t("wheel_upload.no_file", name=name), _EXAMPLE)
    if args.preflight != "off":
        _check(session, path)
    wheel = _send(session, path)

    def shown() -> None:
        session.out.line(
            t("wheel_upload.done", name=wheel["name"], tags=", ".join(wheel["tags"]) or t("wheels.every_worker"))
        )

    session.out.show(wheel, shown)
    return 0


def _check(session: Session, path: Path) -> None:
    from ..wheel_check import shortcomings

    args = session.args
    found = shortcomings(
        path, wants_entry_points=not args.allow_no_entry_points, wants_usage=not args.allow_missing_usage_doc
    )
    if found and args.preflight == "strict":
        raise InvalidArgument(
            t("wheel_upload.refused", name=path.name, what="; ".join(found)), f"{_EXAMPLE} --preflight off"
        )
    for what in found:
        session.out.note(t("wheel_upload.warning", what=what))


def _send(session: Session, path: Path) -> dict[str, Any]:
    args = session.args
    tags = words_of(args.tags)
    if not sys.stderr.isatty():
        with path.open("rb") as file:
            return session.client.upload_wheel(filename=path.name, data=file, replace=args.replace, tags=tags)
    from rich.console import Console
    from rich.progress import Progress

    with (
        Progress(console=Console(stderr=True), transient=True) as bar,
        bar.open(path, "rb", description=path.name) as file,
    ):
        return session.client.upload_wheel(filename=path.name, data=file, replace=args.replace, tags=tags)


def add_wheel_history(parser: CommandParser) -> None:
    add = parser.add_argument
    add("--limit", type=int, default=100, metavar="N", help=t("wheel_history.limit"))
    add("--wheel-name", metavar="NAME", help=t("wheel_history.wheel_name"))
    add("--action", choices=("upload", "delete"), help=t("wheel_history.action"))
    add_output(parser)


def wheel_history(session: Session) -> int:
    args = session.args
    found = session.client.list_wheel_history(limit=args.limit, wheel_name=args.wheel_name, action=args.action)
    table = Table(
        found,
        [
            Column(t("column.at"), lambda event: clock(event["occurred_at"])),
            Column(t("column.action"), lambda event: event["action"]),
            Column(t("column.wheel"), lambda event: event["wheel_name"], style="bold"),
            Column(t("column.tags"), lambda event: event.get("tags")),
            Column(t("column.by"), lambda event: (event.get("actor") or {}).get("api_key_id")),
        ],
        empty=t("wheel_history.none"),
    )
    session.out.show(found, lambda: session.out.table(table))
    return 0


def add_wheel_delete(parser: CommandParser) -> None:
    parser.add_argument("wheel", nargs="?", metavar="NAME", help=t("wheel_delete.name"))
    parser.add_argument("--name", metavar="NAME", help=t("wheel_delete.name_option"))
    add_output(parser)


def wheel_delete(session: Session) -> int:
    name = session.args.name or session.args.wheel
    if name is None:
        raise InvalidArgument(t("usage.required", names="NAME"), "wheel-delete --name etl-1.0-py3-none-any.whl")
    deleted = session.client.delete_wheel(name)
    session.out.show(deleted, lambda: session.out.line(t("wheel_delete.done", name=name)))
    return 0
