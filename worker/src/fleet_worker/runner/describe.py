"""Prints what a worker would offer, with every problem: `python -m fleet_worker.runner.describe --flows-dir DIR`."""

import argparse
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fleet_contracts.catalogue import REPLACES_RESULT_OF, BrokenSource, Catalogue, FlowOffer

from ..boundary.masking import SECRETS
from ..boundary.runner_account import AS_THE_AGENT
from .loading.flows import Flows, FlowsUnusable, load_flows
from .loading.graphs import graph_line
from .loading.import_path import add_to_path


def _lines(flows: Flows, catalogue: Catalogue) -> Iterator[str]:
    for offer in catalogue.flows:
        yield from _lines_of(offer, flows)
        yield ""
    for problem in catalogue.broken:
        yield f"problem: {problem.shown}"
    if catalogue.is_open:
        yield "the flow resolver cannot be asked for the flows that it knows"
    else:
        yield f"{_counted(len(catalogue.flows), 'flow')}, {_counted(len(catalogue.broken), 'problem')}"


def _lines_of(offer: FlowOffer, flows: Flows) -> Iterator[str]:
    flow = flows.resolve(offer.name)
    place = offer.source.place if offer.source.line is None else f"{offer.source.place}:{offer.source.line}"
    yield f"{offer.name}  ({place})"
    if offer.description:
        yield f"  {offer.description}"
    for param in _params(offer.params_schema or {}):
        yield f"  param     {param}"
    if offer.params_schema and offer.params_schema["additionalProperties"]:
        yield "  param     …  any other: a task takes ctx or **"
    yield f"  graph     {SECRETS.mask(graph_line(flow))}"
    defaults = offer.defaults
    said = [
        *([f"retry {defaults.retry.max_attempts}"] if defaults.retry else []),
        *([f"timeout {defaults.timeout_sec:g} s"] if defaults.timeout_sec else []),
        *([f"tag {defaults.tag}"] if defaults.tag else []),
    ]
    if said:
        yield f"  defaults  {', '.join(said)}"


def _params(schema: dict[str, Any]) -> Iterator[str]:
    """One text for each param that does not just take the place of a task's result."""
    required = schema.get("required", [])
    for name, found in sorted(schema.get("properties", {}).items(), key=lambda item: item[0] not in required):
        if REPLACES_RESULT_OF in found:
            continue
        kind = _type_shown(found)
        shown = f"{name}: {kind}" if kind else name
        if "default" in found:
            shown += f" = {json.dumps(found['default'], ensure_ascii=False)}"
        yield f"{shown}  (required)" if name in required else shown


def _type_shown(schema: dict[str, Any]) -> str:
    """The type of a JSON Schema in short; empty if anything goes."""
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    for word, sign in (("anyOf", " | "), ("oneOf", " | "), ("allOf", " & ")):
        if word in schema:
            return sign.join(dict.fromkeys(_type_shown(one) or "any" for one in schema[word]))
    if "enum" in schema or "const" in schema:
        return " | ".join(
            json.dumps(value, ensure_ascii=False) for value in schema.get("enum", [schema.get("const")])
        )
    if schema.get("type") == "array":
        return f"array of {_type_shown(schema.get('items', {})) or 'any'}"
    return str(schema.get("format") or schema.get("type") or "")


def _counted(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _describe(flow_resolver: str | None, flows_dir: str | None, *, as_json: bool) -> tuple[str, int]:
    """What is printed, and the exit code."""
    try:
        flows = load_flows(flow_resolver, flows_dir)
        catalogue = flows.catalogue()
    except FlowsUnusable as error:
        problem = BrokenSource(
            place=flow_resolver or flows_dir or "", exc_type=type(error).__name__, message=str(error)
        )
        flows, catalogue = Flows(), Catalogue(broken=[problem])
    catalogue = Catalogue(**SECRETS.mask_catalogue(catalogue.model_dump(mode="json")))
    is_bad = bool(catalogue.broken) or not (catalogue.flows or catalogue.is_open)
    text = catalogue.model_dump_json(indent=2) if as_json else "\n".join(_lines(flows, catalogue))
    return text, int(is_bad)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m fleet_worker.runner.describe", description=__doc__)
    parser.add_argument("--flows-dir")
    parser.add_argument("--flow-resolver")
    parser.add_argument("--library-path", action="append", default=[])
    # The names only: everybody can read a command line.
    parser.add_argument("--secret-variable", action="append", default=[])
    parser.add_argument("--json", action="store_true")
    wanted = parser.parse_args()
    # As in a runner: flows see a plain command line, and none of the fleet's settings.
    sys.argv[1:] = []
    env = AS_THE_AGENT.options(os.environ, runs_dir=Path.cwd())["env"]
    for name in os.environ.keys() - env.keys():
        del os.environ[name]
    SECRETS.set(os.environ.get(name, "") for name in wanted.secret_variable)
    # Whatever the flows' code prints when it is imported must not get between the lines of the answer.
    answer = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    add_to_path(wanted.library_path)
    text, code = _describe(wanted.flow_resolver, wanted.flows_dir, as_json=wanted.json)
    sys.stdout.flush()
    answer.write(f"{text}\n")
    answer.flush()
    # At once: a module may have started threads that never end.
    os._exit(code)


if __name__ == "__main__":
    main()
