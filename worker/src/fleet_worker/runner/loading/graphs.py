"""The graph of a flow as the catalogue shows it: tasks, branches and loops, and what follows what."""

from collections.abc import Sequence
from typing import Any

from pyoco import Flow
from pyoco.core.models import Task
from pyoco.dsl.expressions import Expression
from pyoco.dsl.nodes import (
    DEFAULT_CASE_VALUE,
    CaseNode,
    ForEachNode,
    RepeatNode,
    SubFlowNode,
    SwitchNode,
    TaskNode,
    UntilNode,
)

from fleet_contracts.catalogue import FlowGraph, GraphEdge, GraphNode

_MOST_NODES = 500
_MOST_LINE_CHARACTERS = 400
# A node that comes before, with the label of the edge from it.
_Sources = Sequence[tuple[str, str | None]]


def in_order(flow: Flow) -> list[Task]:
    """The tasks of the flow, each after those that it depends on; by name where that leaves a choice."""
    missing = {task.name: len(task.dependencies & flow.tasks) for task in flow.tasks}
    found: list[Task] = []
    ready = sorted((task for task in flow.tasks if not missing[task.name]), key=lambda task: task.name)
    while ready:
        found += ready
        following: list[Task] = []
        for task in ready:
            for dependent in task.dependents & flow.tasks:
                missing[dependent.name] -= 1
                if not missing[dependent.name]:
                    following.append(dependent)
        ready = sorted(following, key=lambda task: task.name)
    # A loop may make tasks depend on each other.
    known = {task.name for task in found}
    return found + sorted((task for task in flow.tasks if task.name not in known), key=lambda task: task.name)


def entry_tasks(flow: Flow) -> list[Task]:
    """The tasks that a run begins with."""
    if flow.has_control_flow():
        steps = flow.build_program().steps
        return [steps[0].task] if steps and isinstance(steps[0], TaskNode) else []
    return [task for task in in_order(flow) if task.dependencies.isdisjoint(flow.tasks)]


def graph_of(flow: Flow) -> FlowGraph | None:
    """None if it is too large to be looked at."""
    if len(flow.tasks) > _MOST_NODES:
        return None
    if not flow.has_control_flow():
        tasks = in_order(flow)
        return FlowGraph(
            nodes=[GraphNode(name=task.name) for task in tasks],
            edges=[
                GraphEdge(source=before.name, target=task.name)
                for task in tasks
                for before in tasks
                if before in task.dependencies
            ],
        )
    drawing = _Drawing()
    drawing.add(flow.build_program(), [])
    return FlowGraph(nodes=drawing.nodes, edges=drawing.edges) if len(drawing.nodes) <= _MOST_NODES else None


class _Drawing:
    def __init__(self) -> None:
        self.nodes: list[GraphNode] = []
        self.edges: list[GraphEdge] = []
        self._names: set[str] = set()

    def add(self, node: Any, sources: _Sources) -> _Sources:
        """Draw a part of a program after these nodes; return the nodes that it ends with."""
        match node:
            case SubFlowNode():
                for step in node.steps:
                    sources = self.add(step, sources)
                return sources
            case TaskNode():
                return [(self._node(node.task.name, "task", sources), None)]
            case SwitchNode():
                name = self._node(self._free(_title(node)), "switch", sources)
                ends: list[tuple[str, str | None]] = []
                for case in node.cases:
                    ends += self.add(case.target, [(name, _label(case))])
                return ends
            case RepeatNode():
                return self._loop(self._free(_title(node)), "loop", node.body, sources)
            case ForEachNode():
                return self._loop(self._free(_title(node)), "foreach", node.body, sources)
            case UntilNode():
                number = len(self.edges)
                first = len(self.nodes)
                name = self._free(_title(node))
                ends = list(self.add(node.body, sources))
                entry = self._entry(number, first, sources)
                self._node(name, "condition", ends)
                if entry is not None:
                    self._edge(name, entry, "again")
                return [(name, None)]
        raise TypeError(f"a node of an unknown kind: {type(node).__name__}")

    def _loop(self, name: str, kind: str, body: SubFlowNode, sources: _Sources) -> _Sources:
        self._node(name, kind, sources)
        for end, _ in self.add(body, [(name, "each")]):
            self._edge(end, name, "again")
        return [(name, None)]

    def _entry(self, edge: int, node: int, sources: _Sources) -> str | None:
        """The first node of a body that was drawn since then."""
        if sources and len(self.edges) > edge:
            return self.edges[edge].target
        return self.nodes[node].name if len(self.nodes) > node else None

    def _node(self, name: str, kind: str, sources: _Sources) -> str:
        if name not in self._names:
            self._names.add(name)
            self.nodes.append(GraphNode(name=name, kind=kind))
        for source, label in sources:
            self._edge(source, name, label)
        return name

    def _edge(self, source: str, target: str, label: str | None) -> None:
        edge = GraphEdge(source=source, target=target, label=label)
        if edge not in self.edges:
            self.edges.append(edge)

    def _free(self, name: str) -> str:
        number = 1
        while (found := name if number == 1 else f"{name} #{number}") in self._names:
            number += 1
        return found


def graph_line(flow: Flow) -> str:
    """The graph as a line of text: `a → b & c → d`, where b and c run at the same time."""
    if flow.has_control_flow():
        line = _text(flow.build_program())
    else:
        line = " → ".join(" & ".join(names) for names in _levels(flow))
    return line if len(line) <= _MOST_LINE_CHARACTERS else f"{line[:_MOST_LINE_CHARACTERS]}…"


def _levels(flow: Flow) -> list[list[str]]:
    """The names of the tasks, by how many others have to come before."""
    levels: dict[str, int] = {}
    for task in in_order(flow):
        levels[task.name] = 1 + max((levels.get(one.name, 0) for one in task.dependencies & flow.tasks), default=-1)
    found: list[list[str]] = [[] for _ in range(max(levels.values(), default=-1) + 1)]
    for name, level in levels.items():
        found[level].append(name)
    return found


def _text(node: Any) -> str:
    match node:
        case TaskNode():
            return str(node.task.name)
        case SwitchNode():
            cases = (f"{_label(case)}: {_text(case.target)}" for case in node.cases)
            return f"{_title(node)} [{' | '.join(cases)}]"
        case SubFlowNode():
            return " → ".join(_text(step) for step in node.steps)
        case _:
            return f"{_title(node)} ({_text(node.body)})"


def _title(node: Any) -> str:
    match node:
        case SwitchNode():
            return f"switch {node.expression.source}"
        case RepeatNode():
            return f"repeat {node.count.source if isinstance(node.count, Expression) else node.count}"
        case ForEachNode():
            return f"foreach {node.source.source}" + (f" as {node.alias}" if node.alias else "")
        case UntilNode():
            return f"until {node.condition.source}"
    raise TypeError(f"a node of an unknown kind: {type(node).__name__}")


def _label(case: CaseNode) -> str:
    return "*" if case.value == DEFAULT_CASE_VALUE else str(case.value)
