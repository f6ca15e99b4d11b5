"""Checks a workflow file (flow.yaml) before its run is accepted. Nothing in it is ever executed here."""

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from pydantic import ValidationError

from fleet_contracts.expressions import ARGUMENTS, LONGEST_EXPRESSION, parse_expression
from fleet_contracts.workflow import WorkflowFile, WorkflowFlow, WorkflowRuntime, WorkflowTask
from fleet_kit.files.strict_yaml import BadYaml, Path, YamlDocument, printable, read_yaml, shorten, shown_path

from ..errors import InvalidWorkflow

_FORBIDDEN = {
    "flows": 'a file holds one workflow: use "flow"',
    "discovery": 'which modules are searched is not the file\'s choice: name what you need in "tasks"',
}
_WANTED = {
    "model_type": "must be a mapping",
    "dict_type": "must be a mapping",
    "list_type": "must be a list",
    "string_type": "must be text",
}
_MOST_FAULTS = 20
_MOST_SHOWN = 20
_MOST_LEVELS = 50
# Limit on the text that Pyoco parses in all: it parses a pipe again wherever the graph names it. 4,096 terms, the
# most that Pyoco allows, fit in easily.
_MOST_CHARACTERS = 200_000
_POSITION = re.compile(r"at position (\d+)")
_GRAPH: Path = ("flow", "graph")


@dataclass(frozen=True, slots=True)
class Workflow:
    """A workflow file that a worker can build a flow from."""

    text: str
    sha256: str
    size_bytes: int
    # The run's params, which come from the file.
    defaults: dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Fault:
    reason: str
    line: int
    path: Path = ()


def read_workflow(raw: bytes) -> Workflow:
    """Parse and check a workflow file. InvalidWorkflow, with the line, if no worker could build a flow from it."""
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise _invalid([_Fault("the file is not UTF-8; save it as UTF-8", line)]) from error
    try:
        document = read_yaml(text)
    except BadYaml as error:
        raise _invalid([_Fault(str(error), error.line)]) from error
    try:
        file = WorkflowFile.model_validate(document.value)
    except ValidationError as error:
        raise _invalid(_schema_faults(error, document)) from error
    _GraphCheck(file, document).run()
    return Workflow(
        text=text, sha256=hashlib.sha256(raw).hexdigest(), size_bytes=len(raw), defaults=file.flow.defaults
    )


def _invalid(faults: Sequence[_Fault]) -> InvalidWorkflow:
    # Some reasons quote the file.
    faults = [replace(fault, reason=printable(fault.reason)) for fault in faults]
    return InvalidWorkflow(
        "; ".join(f"line {fault.line}: {fault.reason}" for fault in faults),
        line=faults[0].line,
        fields=[
            {"field": "workflow", "path": shown_path(fault.path), "line": fault.line, "reason": fault.reason}
            for fault in faults
        ],
    )


def _schema_faults(error: ValidationError, document: YamlDocument) -> list[_Fault]:
    faults = []
    for detail in error.errors(include_url=False, include_input=False)[:_MOST_FAULTS]:
        path = detail["loc"]
        place, key = shown_path(path[:-1]), shown_path(path[-1:])
        match detail["type"]:
            case "extra_forbidden" if len(path) == 1 and path[0] in _FORBIDDEN:
                reason = f'the key "{path[0]}" is not allowed; {_FORBIDDEN[path[0]]}'
            case "extra_forbidden":
                known = ", ".join(sorted(_model_at(path).model_fields))
                reason = f'unknown key "{key}"' + (f" in {place}" if place else "") + f"; known keys: {known}"
            case "missing":
                reason = f'the key "{key}" is missing' + (f" in {place}" if place else "")
            case _:
                said = _WANTED.get(detail["type"]) or detail["msg"].removeprefix("Value error, ")
                reason = f"{shown_path(path) or 'the file'}: {said}"
        faults.append(_Fault(reason, document.line_of(path), path))
    return sorted(faults, key=lambda fault: fault.line)


def _model_at(path: Path) -> type[WorkflowFile | WorkflowFlow | WorkflowRuntime | WorkflowTask]:
    match path:
        case ["flow", _]:
            return WorkflowFlow
        case ["runtime", _]:
            return WorkflowRuntime
        case ["tasks", _, _]:
            return WorkflowTask
        case _:
            return WorkflowFile


class _GraphCheck:
    """Lets Pyoco parse the graph and its pipes, and build a flow of tasks that do nothing."""

    def __init__(self, file: WorkflowFile, document: YamlDocument) -> None:
        self._file = file
        self._document = document
        self._texts: Mapping[Path, str] = {
            _GRAPH: file.flow.graph,
            **{("pipes", name): text for name, text in file.pipes.items()},
        }

    def run(self) -> None:
        self._refuse_size(sum(len(text) for text in self._texts.values()))
        parsed = {path: self._parse(path) for path in self._texts}
        self._check_pipes(parsed)
        try:
            self._build(parsed[_GRAPH])
        except (ValueError, RecursionError, MemoryError) as error:
            raise self._fault(_GRAPH, _said(error)) from error

    def _parse(self, path: Path) -> Any:
        from pyoco.dsl.graph import GraphParser, tokenize_graph

        try:
            tokens = tokenize_graph(self._texts[path])
            for token in tokens:
                if token.kind in ("STRING", "TEMPLATE") and len(token.value) > LONGEST_EXPRESSION:
                    raise ValueError(
                        f"an expression has more than {LONGEST_EXPRESSION} characters at position {token.pos}"
                    )
            pipeline = GraphParser(tokens).parse()
            _refuse_depth(pipeline)
            self._check_expressions(path, pipeline, tokens)
        except (ValueError, RecursionError) as error:
            position = _POSITION.search(str(error))
            raise self._fault(path, _said(error), int(position[1]) if position else 0) from error
        return pipeline

    def _check_expressions(self, path: Path, pipeline: Any, tokens: Sequence[Any]) -> None:
        from pyoco.dsl.expressions import translate

        for term, _ in _terms(pipeline):
            for text in (getattr(term, name, None) or "" for name in ARGUMENTS):
                if "$" not in text:
                    continue  # a number or the path of a reference, which Pyoco checks
                expression = text.removeprefix("{{").removesuffix("}}")
                try:
                    parse_expression(translate(expression))
                except ValueError as error:
                    position = next((token.pos for token in tokens if expression in token.value), 0)
                    raise self._fault(path, _said(error), position) from error

    def _check_pipes(self, parsed: Mapping[Path, Any]) -> None:
        """Check that every named pipe exists, that none refers to itself, and that their expanded text is small."""
        sizes: dict[Path, int] = {}
        open_paths: list[Path] = []

        def size_of(path: Path) -> int:
            if path in sizes:
                return sizes[path]
            if path in open_paths or len(open_paths) > _MOST_LEVELS:
                way = " -> ".join(shown_path(part[-1:]) for part in (*open_paths[1:], path))
                raise self._fault(open_paths[-1], f"pipes lead back to themselves, or too far: {way}")
            open_paths.append(path)
            total = len(self._texts[path])
            for name in _pipe_names(parsed[path]):
                if ("pipes", name) not in self._texts:
                    raise self._fault_at_word(path, name, f'the pipe "{shorten(name)}" is not defined in pipes')
                total += size_of(("pipes", name))
            open_paths.pop()
            sizes[path] = total
            return total

        self._refuse_size(size_of(_GRAPH))

    def _refuse_size(self, characters: int) -> None:
        if characters > _MOST_CHARACTERS:
            raise self._fault(_GRAPH, f"with its pipes written out it has more than {_MOST_CHARACTERS} characters")

    def _build(self, graph: Any) -> None:
        from pyoco.core.models import Task
        from pyoco.dsl.graph import TaskTerm, build_flow_from_graph, resolve_pipe_refs, validate_graph_terms

        resolved = resolve_pipe_refs(graph, self._file.pipes)
        _refuse_depth(resolved)
        used = [term for term, _ in _terms(resolved) if isinstance(term, TaskTerm)]
        for term in used:
            if term.name not in self._file.tasks:
                known = ", ".join(shorten(name) for name in islice(self._file.tasks, _MOST_SHOWN))
                reason = f'the graph names the task "{shorten(term.name)}", which is not in tasks; there are: {known}'
                raise self._fault_at_word(_GRAPH, term.name, reason)
        if errors := validate_graph_terms(resolved).errors:
            raise ValueError("; ".join(errors))
        flow = build_flow_from_graph(
            graph=self._file.flow.graph,
            tasks={name: Task(func=_never_called, name=name) for name in self._file.tasks},
            pipes=self._file.pipes,
        )
        # Without loops and choices the tasks form a DAG, in which a node that comes twice waits for itself.
        if not flow.has_control_flow():
            self._refuse_cycle([term.node_name or term.name for term in used])

    def _refuse_cycle(self, nodes: list[str]) -> None:
        seen: dict[str, int] = {}
        for index, node in enumerate(nodes):
            if node in seen:
                cycle = " >> ".join(shorten(name) for name in nodes[seen[node] : index + 1][-5:])
                again = shorten(node)
                reason = f'a cycle: {cycle}; to run a task twice, give the second node a name: "{again}_2: {again}"'
                raise self._fault_at_word(_GRAPH, node, reason)
            seen[node] = index

    def _fault_at_word(self, path: Path, word: str, reason: str) -> InvalidWorkflow:
        """A fault at the position of a word: in this text or, if the word comes from a pipe, in that pipe's text."""
        wanted = re.compile(rf"(?<!\w){re.escape(word)}(?!\w)")
        for place in (path, *self._texts):
            if found := wanted.search(self._texts[place]):
                return self._fault(place, reason, found.start())
        return self._fault(path, reason)

    def _fault(self, path: Path, reason: str, offset: int = 0) -> InvalidWorkflow:
        line = self._document.line_in_text(path, offset)
        return _invalid([_Fault(f"{shown_path(path)}: {reason}", line, path)])


def _terms(pipeline: Any) -> Iterator[tuple[Any, int]]:
    """Every term with its level, without recursion, because the depth of the graph is not limited yet."""
    waiting = [(term, 1) for term in reversed(pipeline.terms)]
    while waiting:
        term, level = waiting.pop()
        yield term, level
        branches = [case.branch for case in getattr(term, "cases", [])]
        branches += [part for name in ("default", "body") if (part := getattr(term, name, None)) is not None]
        for branch in reversed(branches):
            waiting += [(inner, level + 1) for inner in reversed(branch.terms)]


def _refuse_depth(pipeline: Any) -> None:
    if any(level > _MOST_LEVELS for _, level in _terms(pipeline)):
        raise ValueError(f"nested deeper than {_MOST_LEVELS} levels")


def _pipe_names(pipeline: Any) -> Iterator[str]:
    from pyoco.dsl.graph import PipeRefTerm

    return (term.name for term, _ in _terms(pipeline) if isinstance(term, PipeRefTerm))


def _said(error: BaseException) -> str:
    return str(error)[:500] if isinstance(error, ValueError) else "nested too deeply"


def _never_called() -> None:
    raise AssertionError("the service executes no task")
