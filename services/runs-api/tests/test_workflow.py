"""What a workflow file must be like; and that no file does anything but be accepted or refused with a line."""

import builtins
import hashlib
import re
import time
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fleet_runs_api.accept.workflow import Workflow, read_workflow
from fleet_runs_api.errors import InvalidWorkflow

FILE = """\
version: 1
flow:
  graph: |
    # first things first
    fetch >>
    store
  defaults: {day: 2024-01-01, n: 3}
tasks:
  fetch:
    callable: my.steps:fetch
    inputs: {day: $ctx.params.day}
    outputs: [scratch.rows]
  store:
    use: plugin/store
runtime:
  expose_env: [HOME]
"""
TASKS = "tasks: {a: {callable: m:a}, b: {callable: m:b}, c: {use: x/y}}\n"


def graph(text: str, more: str = "") -> str:
    lines = "".join(f"    {line}\n" for line in text.splitlines())
    return f"flow:\n  graph: |\n{lines}{TASKS}{more}"


def refusal(file: str | bytes) -> InvalidWorkflow:
    with pytest.raises(InvalidWorkflow) as caught:
        read_workflow(file if isinstance(file, bytes) else file.encode())
    return caught.value


def test_a_good_file_gives_its_text_its_hash_and_its_defaults() -> None:
    assert read_workflow(FILE.encode()) == Workflow(
        text=FILE,
        sha256=hashlib.sha256(FILE.encode()).hexdigest(),
        size_bytes=len(FILE),
        # A date is text, as in the JSON that params become.
        defaults={"day": "2024-01-01", "n": 3},
    )


@pytest.mark.parametrize(
    "text",
    [
        "a >> b >> c",
        "a >> again: a",
        "repeat(count=3){ a >> b } >> a",
        'until(cond="$ctx.results.a > 3", max_iter=5, collect=last){ a }',
        "foreach(over=items, item=i, index=n){ a >> b }",
        'switch(on=kind){ x: a; "y z": b; default: "b >> c" }',
        "pipe(both) >> pipe('both again')",
    ],
)
def test_every_form_of_graph_that_pyoco_knows_is_accepted(text: str) -> None:
    read_workflow(graph(text, "pipes: {both: a >> b, 'both again': 'm: a >> n: b'}\n").encode())


@pytest.mark.parametrize(
    ("file", "sentence"),
    [
        (
            FILE.replace("    use:", "    retires: 3\n    use:"),
            'line 14: unknown key "retires" in tasks.store; known keys: callable, inputs, ',
        ),
        (FILE + "colour: red\n", 'line 17: unknown key "colour"; known keys: flow, pipes, runtime, tasks, version'),
        (
            FILE.replace("flow:", "flows:"),
            'line 2: the key "flows" is not allowed; a file holds one workflow: use "flow"',
        ),
        (FILE + "discovery: {}\n", 'line 17: the key "discovery" is not allowed'),
        (
            FILE.replace("my.steps:fetch", "os.system"),
            'line 10: tasks.fetch.callable: "os.system" is no module:function',
        ),
        (FILE.replace("my.steps:fetch", "my:os.system"), '"my:os.system" is no module:function'),
        (FILE + "  callable: m:f\n", 'line 17: unknown key "callable" in runtime; known keys: expose_env'),
        (
            FILE.replace("    use:", "    callable: m:f\n    use:"),
            "line 13: tasks.store: give either callable or use, not both",
        ),
        (
            FILE.replace("    use: plugin/store\n", "    inputs: {}\n"),
            "line 13: tasks.store: give either callable or use",
        ),
        (FILE.replace("version: 1", "version: 2"), "line 1: version: Input should be 1"),
        (
            FILE.replace("outputs: [scratch.rows]", "outputs: scratch.rows"),
            "line 12: tasks.fetch.outputs: must be a list",
        ),
        (FILE.replace("expose_env: [HOME]", "expose_env: [1]"), "line 16: runtime.expose_env[0]: must be text"),
        (
            FILE.replace("store\n", "shop\n", 1),
            'line 6: flow.graph: the graph names the task "shop", which is not in tasks',
        ),
        (FILE.replace("fetch >>", "fetch > "), "line 5: flow.graph: Unsupported operator '>'"),
        (FILE.replace("fetch >>", "fetch >> store >>"), "line 5: flow.graph: a cycle: store >> store;"),
        (graph("a >> b >> a"), 'a >> b >> a; to run a task twice, give the second node a name: "a_2: a"'),
        (graph("x: a >> x: b"), "Duplicate node name: x"),
        (graph("pipe(p)", "pipes: {p: nope}"), 'line 5: pipes.p: the graph names the task "nope"'),
        (graph("pipe(p)"), 'the pipe "p" is not defined in pipes'),
        (
            graph("pipe(p)", "pipes: {p: pipe(q), q: pipe(p)}"),
            "pipes lead back to themselves, or too far: p -> q -> p",
        ),
        (graph("switch(on=k){ x: a; x: b }"), "duplicate switch case 'x'"),
        (graph('until(cond="$ctx.a.b() == 1"){ a }'), "an expression calls something; allowed are comparisons,"),
        (graph("repeat(count=²){ a }"), "invalid literal"),
        ("flow: 1", 'line 1: flow: must be a mapping; line 1: the key "tasks" is missing'),
        ("- 1", "line 1: the file: must be a mapping"),
        (b"a: \xff", "line 1: the file is not UTF-8"),
        (b"a: 1\n\x00", "line 2: the character U+0000 is not allowed"),
        ("a: 1\nb: [", "line "),
    ],
)
def test_a_fault_is_reported_with_its_line(file: str | bytes, sentence: str) -> None:
    error = refusal(file)
    assert sentence in error.message
    assert error.meta["line"] == int(re.match(r"line (\d+)", error.message)[1])  # type: ignore[index]
    assert error.meta["fields"][0]["field"] == "workflow"


# Each takes seconds and gigabytes, or does what expressions have no business with.
EXPENSIVE = {
    "'a' * 1500000000 == $ctx.params.n": "uses * with a text",
    "$ctx.params.n * ('a' + $ctx.params.s) == 1": "uses * with a text",
    "9**9**9 > $ctx.params.n": "uses **",
    "2 ** $ctx.params.n > 1": "uses **",
    "[0] * 10 == $ctx.params.n": "uses List",
    "[x for x in [y for y in $ctx.params.n]] == 1": "uses ListComp",
    "1 << 1000000000 > $ctx.params.n": "uses LShift",
    "'%1000000000d' % 1 == $ctx.params.n": "uses % with a text",
    "'{:1000000000}'.format($ctx.params.n) == 1": "calls something",
    "f'{1:1000000000}' == $ctx.params.n": "uses JoinedStr",
    f"{10**20} > $ctx.params.n": "a constant",
    "1e9j == $ctx.params.n": "a constant",
    "$ctx.params.n" + " + 1" * 51 + " > 1": "more than 50 operators",
    "not " * 60 + "$ctx.params.n": "more than 50 operators",
    "(" * 250 + "$ctx.params.n" + ")" * 250: "cannot be read",
    "$ctx.params.n > " + "9" * 1900: "a constant",
    "$ctx.params.n > open('/etc/passwd')": "calls something",
    "$ctx.params.n == '" + "x" * 2000 + "'": "more than 2000 characters",
}


@pytest.mark.parametrize(("expression", "says"), EXPENSIVE.items(), ids=lambda text: text[:30])
def test_an_expression_that_might_be_expensive_is_refused_with_its_line(expression: str, says: str) -> None:
    loops = [
        "until(cond={{ %s }}){ a }",
        "switch(on={{ %s }}){ x: a }",
        "repeat(count={{ %s }}){ a }",
        "foreach(over={{ %s }}, item=i){ a }",
        'switch(on=kind){ x: "until(cond={{ %s }}){ a }" }',
    ]
    for place, loop in enumerate(loops):
        error = refusal(graph("\n".join([*["# a comment"] * place, loop.replace("%s", expression)])))
        assert says in error.message
        assert error.meta["line"] == 3 + place


def test_expressions_that_flows_use_are_accepted() -> None:
    for expression in (
        "$ctx.params.n > 3 and not $ctx.results.a == 'done'",
        "$ctx.params.n * 2 + 1 >= $ctx.params.limit % 7 - 4 / 2",
        "$ctx.params.kind + '-' + $ctx.params.size",
        "'x' in $ctx.params.names or $ctx.loop.index < -1",
    ):
        read_workflow(graph(f"until(cond={{{{ {expression} }}}}){{ a }}").encode())


@pytest.mark.parametrize(
    "file",
    [
        r'tasks: {"a\x9b31m\e[2J": {callable: m:a}}',
        r'tasks: {a: {use: "x\e[2J/y"}}',
        r'tasks: {a: {callable: "m:a\e[2J"}}',
        r'tasks: {a: {callable: m:a, outputs: ["o\e[2J"]}}',
        r'tasks: {a: {callable: m:a, outputs: ["o\n"]}}',
        r'pipes: {"p\e[2J": a}',
        r'"x\x9b2J": 1',
        r'flow: {graph: "a >> \e[2J"}',
        r'flow: {graph: "a >> \"b\e[2J\": a"}',
        r'flow: {graph: "pipe(\"p\e[2J\")"}',
    ],
)
def test_a_control_character_comes_by_no_escape_into_a_name_or_a_refusal(file: str) -> None:
    parts = {"flow": "flow: {graph: a}", "tasks": "tasks: {a: {callable: m:a}}"}
    parts[file.partition(":")[0]] = file
    said = refusal("\n".join(parts.values()))
    assert re.search(r"[\x00-\x1f\x7f-\x9f]", f"{said.message} {said.meta}") is None


def test_all_unknown_keys_are_reported_at_once() -> None:
    error = refusal(FILE + "one: 1\ntwo: 2\n")
    assert [fault["path"] for fault in error.meta["fields"]] == ["one", "two"]
    assert [fault["line"] for fault in error.meta["fields"]] == [17, 18]


@pytest.mark.parametrize(
    "text", ["__import__('os').system('true')", "print(1)", "a >> open('/etc/passwd')", "eval(a)"]
)
def test_python_in_a_graph_is_not_executed(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("something was evaluated")

    refusal(graph("nope"))  # everything is imported by now
    for name in ("eval", "exec"):
        monkeypatch.setattr(builtins, name, refuse)
    refusal(graph(text))
    read_workflow(graph("repeat(count={{ $ctx.params.n * 2 }}){ a }").encode())


@pytest.mark.parametrize(
    "file",
    [
        graph("a", "extra: &x [*x]\n"),
        graph("repeat(count=1){" * 400 + "a" + "}" * 400),
        graph("repeat(count=1){" * 12_000),
        graph(" >> ".join(["a"] * 50_000)),
        graph(" >> ".join(["pipe(p)"] * 4000), "pipes:\n  p: |\n    a # " + "x" * 100_000),
        graph(" >> ".join(["pipe(p0)"] * 4000), "pipes:\n" + "".join(f"  p{i}: pipe(p{i + 1})\n" for i in range(60))),
        graph('until(cond="%s"){ a }' % ("$ctx.a" + "+1" * 100_000)),
        graph('until(cond="$ctx.a == %s1"){ a }' % ("-" * 1900)),
        graph("repeat(count=%s){ a }" % ("9" * 100_000)),
        FILE.replace("n: 3", "n: " + "1:" * 100_000 + "1"),
        FILE.replace("n: 3", "n: 0x" + "f" * 200_000),
        "".join(f"k{i}: 1\n" for i in range(25_000)),
        "[" * 200_000,
        "- " * 100_000,
        "? " * 100_000,
        "{a: " * 50_000,
        "x" * 250_000 + ": 1",
        '"' + "\\n" * 100_000,
    ],
    ids=range(18),
)
def test_no_file_is_expensive_to_refuse(file: str) -> None:
    begun = time.thread_time()
    error = refusal(file)
    assert time.thread_time() - begun < 10  # far more than it takes, far less than a blow-up would
    assert len(error.message) < 5000


words = st.sampled_from(
    [
        "flow:",
        "tasks:",
        "graph:",
        "graph: |\n    ",
        "a",
        "b",
        ">>",
        "\n",
        "\n  ",
        "\n    ",
        "{",
        "}",
        "[",
        "]",
        ":",
        ",",
        "callable: m:f",
        "use: x",
        "repeat(count=2){",
        "switch(on=k){",
        'until(cond="$ctx.x"){',
        "pipe(p)",
        "pipes:",
        "'",
        '"',
        "#",
        "&a",
        "*a",
        "!!x",
        "---\n",
        "? ",
        "- ",
        "|",
        ">",
        "%",
        "@",
        "\t",
        "1",
        "1e9",
        "null",
        "~",
        "<<",
        "²",
        "$env.X",
        "{{",
        "}}",
        "(",
        ")",
        ";",
        "=",
        "default",
        "é",
        "\U0001f600",
        "\\",
    ]
)


@given(st.binary(max_size=300))
@settings(max_examples=300, deadline=None)
def test_any_bytes_are_accepted_or_refused(raw: bytes) -> None:
    accepted_or_refused(raw)


@given(st.lists(words, max_size=60).map(" ".join))
@settings(max_examples=300, deadline=None)
def test_any_jumble_of_yaml_is_accepted_or_refused(text: str) -> None:
    accepted_or_refused(text.encode())


@given(st.integers(0, len(FILE)), st.integers(0, 40), st.one_of(words, st.text(max_size=5)))
@settings(max_examples=500, deadline=None)
@example(len("version: "), 1, ".nan")
def test_a_good_file_with_a_damage_is_accepted_or_refused(start: int, length: int, instead: str) -> None:
    accepted_or_refused((FILE[:start] + instead + FILE[start + length :]).encode(errors="surrogatepass"))


@given(st.lists(words, max_size=30).map(" ".join))
@settings(max_examples=300, deadline=None)
def test_any_graph_is_accepted_or_refused(text: str) -> None:
    accepted_or_refused(graph(text).encode())


def accepted_or_refused(raw: bytes) -> None:
    try:
        workflow = read_workflow(raw)
    except InvalidWorkflow as error:
        refused = error
    else:
        assert workflow.text.encode() == raw
        return
    assert re.match(r"line [1-9]\d*: \S", refused.message)
    assert refused.meta["line"] <= len(raw.decode(errors="replace").splitlines()) + 1
