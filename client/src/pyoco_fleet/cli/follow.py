"""Follows a run to its end: its states and its output, each from a stream of its own, in one order for the views."""

import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from ..routes import runs as routes
from .errors import CommandFailed
from .output import Item
from .session import TERMINAL, Session
from .texts import t

FAILED_EXIT_CODE = 2
# How long the rest of the output is waited for when the run has ended already.
_LAST_LINES_SECONDS = 10.0
_LOOK_AGAIN_SECONDS = 0.2


class View(Protocol):
    """Shows a run while it works."""

    def __enter__(self) -> "View": ...

    def __exit__(self, *_: object) -> None: ...

    def show_run(self, run: Item) -> None: ...

    def show_line(self, line: str) -> None: ...


@dataclass
class Lines:
    """Joins the pieces of the output of a run to lines, which name their task."""

    with_prefix: bool = True
    _begun: dict[tuple[object, ...], str] = field(default_factory=dict)

    def add(self, piece: Item) -> list[str]:
        source = (piece.get("task"), piece.get("stream"), piece.get("attempt"))
        *whole, rest = (self._begun.pop(source, "") + str(piece.get("text") or "")).split("\n")
        if rest:
            self._begun[source] = rest
        level = f"{piece['level']} " if piece.get("level") else ""
        return [self._named(source, level + line) for line in whole]

    def rest(self) -> list[str]:
        return [self._named(source, text) for source, text in self._begun.items()]

    def _named(self, source: tuple[object, ...], line: str) -> str:
        task, stream, attempt = source
        if not self.with_prefix:
            return line
        of = [str(task or "-")]
        if stream == "stderr":
            of.append("stderr")
        if isinstance(attempt, int) and attempt > 1:
            of.append(t("logs.attempt_number", number=attempt))
        return f"[{' '.join(of)}] {line}"


def prefixed(pieces: Iterable[Item], *, with_prefix: bool = True) -> Iterator[str]:
    lines = Lines(with_prefix)
    for piece in pieces:
        yield from lines.add(piece)
    yield from lines.rest()


def log_events(
    session: Session, run_id: str, chosen: Mapping[str, Any] | None = None, *, to_the_end: bool = True
) -> Iterator[Item]:
    """The output of a run, piece by piece: until the run has ended, or what there is now."""
    if not to_the_end:
        after: str | None = "0"
        attempt = (chosen or {}).get("attempt")
        while after is not None:
            page = session.client.get_events(run_id, after=after, attempt=attempt)
            for event in page["events"]:
                if event["kind"] == "log" and all(event.get(name) == value for name, value in (chosen or {}).items()):
                    yield event
            after = page["next"]
        return
    last_id: str | None = None
    while True:
        call = routes.follow_logs(run_id, **(chosen or {}))
        for event in session.client.stream(call, last_id):
            last_id = event.id or last_id
            if event.event == "log":
                yield event.data
            elif event.event == "end":
                return


def run_states(session: Session, run_id: str) -> Iterator[Item]:
    """The run as it is, and after every change, until it has ended."""
    last_id: str | None = None
    while True:
        for event in session.client.stream(routes.watch_run(run_id, include_records=True), last_id):
            last_id = event.id or last_id
            if event.event == "snapshot":
                run = event.data["snapshot"]
                yield run
                if run["status"] in TERMINAL:
                    return


def follow(session: Session, run_id: str, view: View, *, with_logs: bool, timeout: float | None = None) -> Item:
    """Show a run until it has ended; return how it has ended."""
    arrived: queue.Queue[tuple[str, Any]] = queue.Queue()
    sources: dict[str, Callable[[], Iterator[Any]]] = {"run": lambda: run_states(session, run_id)}
    if with_logs:
        sources["line"] = lambda: prefixed(log_events(session, run_id))
    for kind, source in sources.items():
        # Daemons: Ctrl-C must not wait for a stream.
        threading.Thread(target=_pump, args=(kind, source, arrived), daemon=True).start()
    deadline = None if timeout is None else time.monotonic() + timeout
    run: Item | None = None
    open_streams = set(sources)
    while open_streams:
        if deadline is not None and time.monotonic() > deadline:
            if run is not None and run["status"] in TERMINAL:
                break
            raise CommandFailed(t("follow.timeout", run_id=run_id, seconds=f"{timeout:g}"), f"watch {run_id}")
        try:
            kind, value = arrived.get(timeout=_LOOK_AGAIN_SECONDS)
        except queue.Empty:
            continue
        match kind:
            case "run":
                run = value
                view.show_run(value)
                if value["status"] in TERMINAL:
                    last = time.monotonic() + _LAST_LINES_SECONDS
                    deadline = last if deadline is None else min(deadline, last)
            case "line":
                view.show_line(value)
            case "ended":
                open_streams.discard(value)
            case _:
                raise value
    if run is None:
        raise CommandFailed(t("follow.nothing", run_id=run_id), f"get {run_id}")
    return run


def _pump(kind: str, source: Callable[[], Iterator[Any]], arrived: "queue.Queue[tuple[str, Any]]") -> None:
    try:
        for value in source():
            arrived.put((kind, value))
    except Exception as error:  # noqa: BLE001 - raised again where it is read
        arrived.put(("error", error))
    else:
        arrived.put(("ended", kind))


class _Unseen:
    """Shows nothing."""

    def __enter__(self) -> "_Unseen":
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def show_run(self, run: Item) -> None:
        return None

    def show_line(self, line: str) -> None:
        return None


def follow_visibly(session: Session, run_id: str, *, with_logs: bool, timeout: float | None = None) -> Item:
    """Follow a run with what this terminal can show; Ctrl-C leaves the run alone and says so."""
    view: View
    if session.out.is_terminal and session.out.form == "table":
        from .live_view import LiveView

        view = LiveView(session.out, run_id)
    elif with_logs:
        from .live_view import PlainView

        view = PlainView(session.out)
    else:
        view = _Unseen()
    try:
        with view:
            return follow(session, run_id, view, with_logs=with_logs, timeout=timeout)
    except KeyboardInterrupt:
        watch, cancel = session.command(f"watch {run_id}"), session.command(f"cancel --run-id {run_id}")
        session.out.note("\n" + t("follow.goes_on", run_id=run_id, watch=watch, cancel=cancel))
        raise


def follow_to_the_end(session: Session, run_id: str, *, with_logs: bool, timeout: float | None) -> int:
    """What `submit`, `submit-yaml` and `rerun` do with --wait and --follow."""
    run = follow_visibly(session, run_id, with_logs=with_logs, timeout=timeout)
    answer = session.client.get_result(run_id)
    session.out.show(
        {**run, "result": answer["result"]},
        lambda: show_end(session, run, answer),
        lambda: [str(run["status"])],
    )
    return 0 if run["status"] == "COMPLETED" else FAILED_EXIT_CODE


def show_end(session: Session, run: Item, answer: Item) -> None:
    """How a run that was followed has ended, and what one may do about it."""
    run_id, out = str(run["run_id"]), session.out
    if not out.is_terminal:
        out.fields([(t("field.run"), run_id), (t("field.status"), run["status"])], state=run["status"])
    else:
        out.line()
    out.fields([(t("field.result"), answer["result"]), (t("field.error"), run.get("error"))])
    if run["status"] == "FAILED":
        out.note(t("follow.failed", why=session.command(f"why {run_id}"), rerun=session.command(f"rerun {run_id}")))
