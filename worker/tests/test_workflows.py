"""Flows of workflow files: made of what the file uses, and only of what this worker allows."""

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from pyoco import Flow
from pyoco.core.engine import Engine
from pyoco.core.models import RunContext
from pyoco.dsl.expressions import ExpressionEvaluationError

from fleet_contracts.dead_letter import DeadLetterReason
from fleet_worker.boundary.frames import Setup
from fleet_worker.runner.loading.flows import FlowNotFound, load_flows
from fleet_worker.runner.loading.workflows import Workflows

pytestmark = pytest.mark.usefixtures("own_modules")

EXAMPLES = Path(__file__).parents[2] / "examples"
Build = Callable[..., Flow]

STEPS = """
import functools
import os
import subprocess as sp
from os import getcwd
from shutil import rmtree
from pyoco import Flow, task

run = sp.run
shout = functools.partial(print, "!")
number = 7

@task
def one(x=1):
    return x + 1

def two(one):
    return one * 10

class Box:
    def __init__(self, value):
        self.value = value

def boxed():
    return Box(5)

flow = Flow("steps") >> one
"""
PLUGIN = """
def offer(registry):
    registry.register_callable(double, name="demo/double", inputs={"x": 4})

def double(x):
    return 2 * x
"""


@pytest.fixture
def flows_dir(tmp_path: Path) -> Path:
    folder = tmp_path / "flows"
    (folder / "deep").mkdir(parents=True)
    (folder / "steps.py").write_text(STEPS)
    (folder / "deep" / "inner.py").write_text("def three():\n    return 3\n")
    # A library has this name, too.
    (folder / "json.py").write_text("def dumps():\n    return 'ours'\n")
    (folder / "loud.py").write_text(f"open({str(tmp_path / 'imported')!r}, 'w').close()\ndef f(): pass\n")
    (folder / "_broken.py").write_text("raise RuntimeError('broken on purpose')\n")
    return folder


@pytest.fixture
def workflows(flows_dir: Path) -> Workflows:
    return allowing(flows_dir)


def allowing(flows_dir: Path, *modules: str, env: tuple[str, ...] = ()) -> Workflows:
    load_flows(None, str(flows_dir))
    setup = Setup(None, str(flows_dir), "", callable_allow=list(modules), env_allow=list(env))
    return Workflows(setup)


def text(graph: str, more: str = "", **tasks: str) -> str:
    lines = "".join(f"  {name}: {{{source}}}\n" for name, source in tasks.items())
    return f"flow:\n  graph: |\n    {graph}\ntasks:\n{lines}{more}"


def calling(spec: str) -> str:
    return text("it", it=f'callable: "{spec}"')


def results(flow: Flow, tmp_path: Path, **params: object) -> dict[str, object]:
    os.chdir(tmp_path)
    return dict(Engine().run(flow, params, RunContext()).results)


def refused(workflows: Workflows, file: str) -> FlowNotFound:
    with pytest.raises(FlowNotFound) as caught:
        workflows.build(file, name="w")
    return caught.value


def test_tasks_have_the_names_of_the_file_and_get_its_inputs(workflows: Workflows, tmp_path: Path) -> None:
    file = text(
        "first >> second",
        first="callable: steps:one, inputs: {x: 4}",
        second="callable: flows.steps:two, inputs: {one: $node.first.output}, outputs: [scratch.sum]",
    )
    flow = workflows.build(file, name="mine")
    assert (flow.name, {task.name for task in flow.tasks}) == ("mine", {"first", "second"})
    assert results(flow, tmp_path) == {"first": 5, "second": 50}


@pytest.mark.parametrize("spec", ["deep.inner:three", "flows.deep.inner:three", "json:dumps", "steps:boxed"])
def test_every_module_of_the_flow_folder_is_allowed(workflows: Workflows, tmp_path: Path, spec: str) -> None:
    assert results(workflows.build(calling(spec), name="w"), tmp_path)["it"]


def test_control_flow_pipes_and_named_nodes_run(workflows: Workflows, tmp_path: Path) -> None:
    file = text(
        "one >> again: one >> pipe(rest) >> repeat(count=2){ third: one } >> switch(on=kind){ a: two; default: one }",
        "pipes: {rest: 'until(cond=\"$ctx.results.boxed.value == 5\", max_iter=3){ boxed }'}\n",
        one="callable: steps:one",
        two="callable: steps:two",
        boxed="callable: steps:boxed",
    )
    done = results(workflows.build(file, name="w"), tmp_path, kind="a")
    assert done.keys() == {"one", "again", "boxed", "third", "two"}
    assert done["two"] == 20


def test_only_what_the_graph_uses_is_imported_and_run(workflows: Workflows, tmp_path: Path) -> None:
    (tmp_path / "imported").unlink()
    del sys.modules["loud"]
    file = text("one", one="callable: steps:one", other="callable: loud:f", wrong="callable: os:system")
    assert results(workflows.build(file, name="w"), tmp_path) == {"one": 2}
    assert not (tmp_path / "imported").exists()


@pytest.mark.parametrize(
    ("spec", "missing"),
    [
        ("os:system", "os"),
        ("os.path:join", "os.path"),
        ("subprocess:run", "subprocess"),
        ("builtins:eval", "builtins"),
        ("__main__:main", "__main__"),
        ("fleet_worker.runner.main:main", "fleet_worker.runner.main"),
        ("stepsister:one", "stepsister"),
        ("antigravity:geohash", "antigravity"),
    ],
)
def test_a_module_that_is_not_allowed_is_not_even_imported(workflows: Workflows, spec: str, missing: str) -> None:
    known = "antigravity" in sys.modules
    error = refused(workflows, calling(spec))
    assert error.reason is DeadLetterReason.CALLABLE_NOT_ALLOWED
    assert str(error) == (
        f"callable {spec} is not allowed; add its module to PYOCO_WORKFLOW_CALLABLE_ALLOW on the worker, "
        f"e.g. PYOCO_WORKFLOW_CALLABLE_ALLOW={missing}"
    )
    assert ("antigravity" in sys.modules) is known


@pytest.mark.parametrize(
    ("name", "home"), [("run", "subprocess"), ("rmtree", "shutil"), ("getcwd", "posix"), ("shout", "functools")]
)
def test_what_an_allowed_module_has_only_imported_is_not_allowed(workflows: Workflows, name: str, home: str) -> None:
    error = refused(workflows, calling(f"steps:{name}"))
    assert error.reason is DeadLetterReason.CALLABLE_NOT_ALLOWED
    assert f"it comes from the module {home};" in str(error)


@pytest.mark.parametrize(
    ("file", "sentence"),
    [
        (calling("steps:absent"), "callable steps:absent does not exist"),
        (calling("steps:number"), "is a int, not a function or a task"),
        (calling("steps:flow"), "is a Flow, not a function or a task"),
        (calling("steps:os.system"), '"steps:os.system" is no module:function'),
        (calling("steps:one:two"), "is no module:function"),
        (calling("_broken:f"), "module _broken cannot be imported .RuntimeError: broken on purpose."),
        (calling("deep.absent:f"), "module deep.absent cannot be imported .ModuleNotFoundError"),
        (calling("x" * 3000 + ":f"), "is not allowed"),
        (text("nope", one="callable: steps:one"), "Task not found: nope"),
        (text("one >> one", one="callable: steps:one"), "it is a cycle"),
        (text("__import__('os')", one="callable: steps:one"), "the workflow's graph cannot be used"),
        (text("repeat(count=1){" * 2000, one="callable: steps:one"), "the workflow's graph cannot be used"),
        (text("it", it="callable: steps:one, use: x"), "give either callable or use, not both"),
        (text("it", it="use: nothing"), "no plug-in of this worker offers the task nothing"),
        (text("a", a="use: b", b="use: a"), "offers the task a"),
        ("flow: [", "the workflow file cannot be used: line"),
        ("a: &x [1]\nb: *x", "anchors such as"),
        ("", "the document is empty"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_with_a_sentence(
    workflows: Workflows, file: str, sentence: str
) -> None:
    with pytest.raises(FlowNotFound, match=sentence):
        workflows.build(file, name="w")


def test_allowed_modules_are_prefixes_of_whole_names(flows_dir: Path, tmp_path: Path) -> None:
    workflows = allowing(flows_dir, "xml")
    assert workflows.build(calling("xml.sax.saxutils:escape"), name="w").tasks
    assert refused(workflows, calling("xmlrpc.client:dumps")).reason is DeadLetterReason.CALLABLE_NOT_ALLOWED


def test_a_resolver_has_no_folder_that_would_be_allowed(flows_dir: Path) -> None:
    workflows = Workflows(Setup("some.module:find", str(flows_dir), ""))
    assert refused(workflows, calling("steps:one")).reason is DeadLetterReason.CALLABLE_NOT_ALLOWED


def test_a_plug_in_is_used_when_its_module_is_allowed(flows_dir: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    (site / "demo-1.0.dist-info").mkdir(parents=True)
    (site / "demo-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: demo\nVersion: 1.0\n")
    (site / "demo-1.0.dist-info" / "entry_points.txt").write_text("[pyoco.tasks]\ndemo = demo_plugin:offer\n")
    (site / "demo_plugin.py").write_text(PLUGIN)
    sys.path.append(str(site))
    file = text("it >> that", it="use: demo/double", that="use: it, inputs: {x: $node.it.output}")

    error = refused(allowing(flows_dir), file)
    assert error.reason is DeadLetterReason.CALLABLE_NOT_ALLOWED
    assert "no allowed plug-in offers the task demo/double" in str(error)
    assert "installed: demo_plugin" in str(error)
    assert "demo_plugin" not in sys.modules

    workflows = allowing(flows_dir, "demo_plugin")
    for _ in range(2):
        assert results(workflows.build(file, name="w"), tmp_path) == {"it": 8, "that": 16}


@pytest.mark.parametrize(
    "file",
    [
        text("it", it="callable: steps:one, inputs: {x: $env.FLEET_SECRET}"),
        text(
            'switch(on="env.FLEET_SECRET"){ a: it }',
            it="callable: steps:one",
        ),
        text("repeat(count={{ $env.FLEET_SECRET * 2 }}){ it }", it="callable: steps:one"),
        # Python takes the wide letters for the plain ones.
        text("repeat(count={{ $ctx.params.n + _ｅnv('FLEET_SECRET') }}){ it }", it="callable: steps:one"),
    ],
)
def test_the_environment_is_read_only_where_allowed(flows_dir: Path, file: str) -> None:
    error = refused(allowing(flows_dir, env=("FLEET",)), file)
    assert error.reason is DeadLetterReason.REFERENCE_NOT_ALLOWED
    assert "PYOCO_WORKFLOW_ENV_ALLOW=FLEET_SECRET" in str(error)
    assert allowing(flows_dir, env=("FLEET_SECRET",)).build(file, name="w").tasks


@pytest.mark.parametrize(
    "file",
    [
        text("it", it="callable: steps:one, inputs: {x: $node.boxed.output.__init__.__globals__.os.environ}"),
        text(
            'foreach(over="ctx.loop.__class__"){ it }',
            it="callable: steps:one",
        ),
    ],
)
def test_no_reference_leads_behind_the_scenes(workflows: Workflows, file: str) -> None:
    assert refused(workflows, file).reason is DeadLetterReason.REFERENCE_NOT_ALLOWED


def loop(condition: str) -> str:
    return text(f"until(cond={{{{ {condition} }}}}, max_iter=1){{ one }}", one="callable: steps:one")


@pytest.mark.parametrize(
    "condition", ["'a' * 1500000000 == $ctx.params.n", "9**9**9 > $ctx.params.n", "'%99999d' % 1 == $ctx.params.n"]
)
def test_an_expression_that_might_be_expensive_is_refused(workflows: Workflows, condition: str) -> None:
    assert "graph cannot be used: an expression uses" in str(refused(workflows, loop(condition)))


@pytest.mark.parametrize(
    "condition",
    [
        "$ctx.params.text * $ctx.params.n == 1",
        "$ctx.params.n * $ctx.params.many == 1",
        "($ctx.params.many + $ctx.params.many) * $ctx.params.n == 1",
        "$ctx.params.text % 1 == 1",
        "$ctx.params.digits * $ctx.params.digits == 1",
    ],
)
def test_what_a_reference_finds_makes_no_expression_expensive(
    workflows: Workflows, tmp_path: Path, condition: str
) -> None:
    flow = workflows.build(loop(condition), name="w")
    with pytest.raises(ExpressionEvaluationError, match=r"take numbers|too large"):
        results(flow, tmp_path, text="%150000000d", many=[1, 2], n=1_500_000_000, digits=10**4000)


@pytest.mark.parametrize(
    "condition", ["$ctx.params.n * 2 % 7 - 1 == 0", "$ctx.params.kind + '!' == 'x!' and -$ctx.params.n < 3"]
)
def test_expressions_compute_with_numbers_and_join_texts(
    workflows: Workflows, tmp_path: Path, condition: str
) -> None:
    assert results(workflows.build(loop(condition), name="w"), tmp_path, n=4, kind="x")["one"] == 2


def test_the_example_file_works_with_the_example_folder(tmp_path: Path) -> None:
    flow = allowing(EXAMPLES).build((EXAMPLES / "flow.yaml").read_text(), name="hello")
    assert results(flow, tmp_path, name="Ada")["greet"] == "Hello, Ada!"
