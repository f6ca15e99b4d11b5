"""`submit`, `submit-yaml`, `rerun`, `cancel`: what is asked of the fleet."""

import argparse
import json
from pathlib import Path
from typing import Any

from ..errors import InvalidArgument
from ..params import build_params
from ..parser import CommandParser, add_output, words_of
from ..session import Session
from ..texts import t
from ..times import moment, seconds

_DEFAULT_FLOW = "main"
_DEFAULT_CANCEL_SECONDS = 30


def add_submit(parser: CommandParser) -> None:
    add = parser.add_argument
    add("flow", nargs="?", metavar="FLOW", help=t("submit.flow"))
    add("--flow-name", metavar="FLOW", help=t("submit.flow_name"))
    add("-p", "--param", action="append", default=[], metavar="KEY=VALUE", help=t("submit.param"))
    add("--params", action="append", default=[], metavar="JSON", help=t("submit.params"))
    add("--params-file", action="append", default=[], metavar="FILE", help=t("submit.params_file"))
    _add_routing(parser)
    _add_times(parser)
    add("--no-check-params", action="store_true", help=t("submit.no_check_params"))
    _add_waiting(parser)


def _add_routing(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--tag", help=t("submit.tag"))
    parser.add_argument("--tags", metavar="A,B", help=t("submit.tags"))
    parser.add_argument("--idempotency-key", metavar="KEY", help=t("submit.idempotency_key"))


def _add_times(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--retry", metavar="N", help=t("submit.retry"))
    add("--not-before", metavar="TIME", help=t("submit.not_before"))
    add("--delay", metavar="SPAN", help=t("submit.delay"))
    add("--run-timeout", metavar="SPAN", help=t("submit.run_timeout"))


def _times(args: argparse.Namespace) -> dict[str, Any]:
    """What the options of `_add_times` mean on the wire."""
    at = "submit hello --not-before 2026-01-31T09:30"
    later, within = "submit hello --delay 10m", "submit hello --run-timeout 1h"
    return {
        "retry": args.retry and _retry(args.retry),
        "not_before": args.not_before and moment(args.not_before, "--not-before", example=at, ahead=True),
        "delay_sec": args.delay and seconds(args.delay, "--delay", later),
        "timeout_sec": args.run_timeout and seconds(args.run_timeout, "--run-timeout", within),
    }


def _retry(text: str) -> int | dict[str, Any]:
    """A number of attempts, or the whole rule as a JSON object."""
    try:
        rule = json.loads(text)
    except ValueError:
        rule = None
    if isinstance(rule, bool) or not isinstance(rule, int | dict):
        example = """submit hello --retry '{"max_attempts": 5, "base_seconds": 0.5}'"""
        raise InvalidArgument(t("submit.no_retry", value=text), example)
    return rule


def _add_waiting(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--wait", action="store_true", help=t("submit.wait"))
    parser.add_argument("-f", "--follow", action="store_true", help=t("submit.follow"))
    parser.add_argument("--timeout-sec", type=float, metavar="SEC", help=t("submit.timeout_sec"))
    add_output(parser, "status")


def submit(session: Session) -> int:
    args = session.args
    if args.flow and args.flow_name and args.flow != args.flow_name:
        raise InvalidArgument(t("submit.two_flows", one=args.flow, other=args.flow_name), "submit hello")
    flow = args.flow or args.flow_name or _DEFAULT_FLOW
    submitted = session.client.submit_run(
        flow,
        build_params(args.params_file, args.params, args.param),
        tag=args.tag,
        tags=words_of(args.tags),
        idempotency_key=args.idempotency_key,
        check_params=False if args.no_check_params else None,
        **_times(args),
    )
    return _go_on(session, submitted, flow)


def _go_on(session: Session, submitted: dict[str, Any], flow: str | None = None) -> int:
    """Wait for the end of a submitted run if that was asked for, else print its id."""
    args, run_id = session.args, str(submitted["run_id"])
    if args.wait or args.follow:
        from ..follow import follow_to_the_end

        return follow_to_the_end(session, run_id, with_logs=args.follow, timeout=args.timeout_sec)

    def shown() -> None:
        session.out.line(run_id)
        session.out.note(t("submit.next", follow=session.command(f"watch {run_id}")))
        if flow is not None and session.out.is_terminal:
            _warn_of_unknown_flow(session, flow)

    session.out.show(submitted, shown, lambda: [str(submitted["status"])])
    return 0


def _warn_of_unknown_flow(session: Session, flow: str) -> None:
    """Such a run is accepted, as a worker that offers the flow may be about to start; more often it is misspelt."""
    from ...errors import FleetError

    try:
        known = [str(offered["name"]) for offered in session.client.list_flows()["flows"]]
    except FleetError:
        # The run is accepted, and a key may submit that may not read flows.
        return
    if known and flow not in known:
        import difflib

        near = difflib.get_close_matches(flow, known, n=1)
        advice = t("usage.unknown_near", near=near[0]) if near else ""
        session.out.note(t("submit.unknown_flow", flow=flow, near=advice, flows=session.command("flows")))


def add_submit_yaml(parser: CommandParser) -> None:
    parser.add_argument("file", nargs="?", metavar="FILE", help=t("submit_yaml.file"))
    parser.add_argument("--workflow-file", metavar="FILE", help=t("submit_yaml.workflow_file"))
    parser.add_argument("--flow-name", metavar="FLOW", help=t("submit_yaml.flow_name"))
    _add_routing(parser)
    _add_times(parser)
    _add_waiting(parser)


def submit_yaml(session: Session) -> int:
    args = session.args
    name = args.workflow_file or args.file
    if name is None:
        raise InvalidArgument(t("usage.required", names="FILE"), "submit-yaml flow.yaml --flow-name hello-yaml")
    try:
        workflow = Path(name).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "UTF-8"
        raise InvalidArgument(
            t("params.unreadable", name=name, reason=reason), "submit-yaml flow.yaml --flow-name hello-yaml"
        ) from None
    submitted = session.client.submit_run_yaml(
        workflow,
        flow_name=args.flow_name or Path(name).stem,
        tag=args.tag,
        tags=words_of(args.tags),
        idempotency_key=args.idempotency_key,
        **_times(args),
    )
    return _go_on(session, submitted)


def add_rerun(parser: CommandParser) -> None:
    parser.add_argument("run_id", metavar="RUN_ID", help=t("option.run_id"))
    parser.add_argument("--idempotency-key", metavar="KEY", help=t("submit.idempotency_key"))
    _add_waiting(parser)


def rerun(session: Session) -> int:
    run_id = session.run_id(session.args.run_id)
    return _go_on(session, session.client.rerun_run(run_id, idempotency_key=session.args.idempotency_key))


def add_cancel(parser: CommandParser) -> None:
    parser.add_argument("run", nargs="?", metavar="RUN_ID", help=t("option.run_id"))
    parser.add_argument("--run-id", metavar="RUN_ID", help=t("cancel.run_id"))
    parser.add_argument("--reason", metavar="TEXT", help=t("cancel.reason"))
    parser.add_argument("--wait", action="store_true", help=t("cancel.wait"))
    parser.add_argument(
        "--timeout-sec", type=float, default=_DEFAULT_CANCEL_SECONDS, metavar="SEC", help=t("cancel.timeout_sec")
    )
    add_output(parser, "status")


def cancel(session: Session) -> int:
    args = session.args
    given = args.run_id or args.run
    if given is None:
        raise InvalidArgument(t("usage.required", names="RUN_ID"), "cancel --run-id 01a1e30e-8505 --wait")
    run_id = session.run_id(given)
    run = session.client.cancel_run(run_id, wait=args.wait, timeout_sec=args.timeout_sec, reason=args.reason)

    def shown() -> None:
        session.out.line(t(f"cancel.{run['status']}", run_id=run_id))

    session.out.show(run, shown, lambda: [str(run["status"])])
    return 0
