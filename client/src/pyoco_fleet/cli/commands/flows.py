"""`flows`: what can be submitted."""

import json
from typing import Any

from ..output import Column, Item, Table
from ..parser import CommandParser, add_output
from ..session import Session
from ..texts import t
from ..times import duration


def add_flows(parser: CommandParser) -> None:
    parser.add_argument("flow", nargs="?", metavar="FLOW", help=t("flows.flow"))
    add_output(parser)


def flows(session: Session) -> int:
    if session.args.flow is not None:
        flow = session.client.get_flow(session.args.flow)
        session.out.show(flow, lambda: _show_one(session, flow))
        return 0
    answer = session.client.list_flows()
    session.out.show(answer, lambda: _show_all(session, answer))
    return 0


def _show_all(session: Session, answer: Item) -> None:
    out = session.out
    out.table(
        Table(
            answer["flows"],
            [
                Column(t("column.flow"), lambda flow: flow["name"], style="bold"),
                Column(t("column.tags"), lambda flow: flow["tags"]),
                Column(t("column.workers"), lambda flow: flow["workers"], is_number=True),
                Column(t("column.version"), lambda flow: flow["versions"]),
                Column(t("column.description"), lambda flow: flow["description"]),
            ],
            empty=t("flows.none"),
        )
    )
    for source in answer["broken"]:
        line = f":{source['line']}" if source.get("line") else ""
        out.note(
            t("flows.broken", place=f"{source['place']}{line}", error=f"{source['exc_type']}: {source['message']}")
        )
    for failure in answer["reload_failures"]:
        out.note(t("flows.reload_failure", error=failure["error"]))


def _show_one(session: Session, flow: Item) -> None:
    out, schema, defaults = session.out, flow["params_schema"] or {}, flow["defaults"] or {}
    required, properties = schema.get("required") or [], schema.get("properties") or {}
    timeout = defaults.get("timeout_sec")
    out.fields(
        [
            (t("field.flow"), flow["name"]),
            (t("field.description"), flow["description"]),
            (t("field.tags"), flow["tags"]),
            (t("field.version"), flow["versions"]),
            (t("field.differs"), flow["differs"]),
            (t("field.retry"), defaults.get("retry")),
            (t("field.run_timeout"), None if timeout is None else duration(timeout)),
            (t("field.default_tag"), defaults.get("tag")),
            (t("field.workers"), [offer["worker_id"] for offer in flow["offers"]]),
        ]
    )
    if properties:
        out.heading(t("field.params"))
        out.table(
            Table(
                # Those of the flow first, then those that stand in for a task.
                sorted(
                    ({**value, "name": name} for name, value in properties.items()),
                    key=lambda one: "x-replaces-result-of" in one,
                ),
                [
                    Column(t("column.param"), lambda one: one["name"], style="bold"),
                    Column(t("column.type"), _type),
                    Column(t("column.default"), lambda one: _default(one, one["name"] in required)),
                    Column(t("column.description"), lambda one: one.get("description")),
                ],
                wraps=True,
            )
        )
    pairs = " ".join(f"-p {name}={_sample(properties[name])}" for name in required if name in properties)
    out.line()
    out.line(t("flows.example", line=session.command(f"submit {flow['name']} {pairs}".strip() + " --follow")))


def _type(schema: Item) -> str:
    if "enum" in schema:
        return " | ".join(json.dumps(value) for value in schema["enum"])
    if "anyOf" in schema:
        return " | ".join(_type(one) for one in schema["anyOf"])
    kind: Any = schema.get("type")
    return str(kind or schema.get("$ref", "").rpartition("/")[2] or "-")


def _default(schema: Item, is_required: bool) -> str:
    if is_required:
        return t("flows.required")
    return json.dumps(schema["default"], ensure_ascii=False) if "default" in schema else "-"


def _sample(schema: Item) -> str:
    kinds = {"integer": "1", "number": "1.5", "boolean": "true", "array": "'[]'", "object": "'{}'"}
    return kinds.get(str(schema.get("type")), "text")
