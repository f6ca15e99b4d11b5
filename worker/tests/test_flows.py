"""Where flows come from, and what is said when they cannot be had."""

from pathlib import Path

import pytest

from fleet_worker.runner.flows import FlowNotFound, FlowsUnusable, load_flows

pytestmark = pytest.mark.usefixtures("own_modules")

FLOW = "from pyoco import Flow, task\n@task\ndef {task}():\n    pass\nflow = Flow('{name}') >> {task}\n"
EXAMPLES = Path(__file__).parents[2] / "examples"


def test_every_flow_of_a_folder_is_offered_under_its_name(tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text(FLOW.format(task="a", name="first"))
    (tmp_path / "two.py").write_text(FLOW.format(task="b", name="second") + "import one\nsame = one.flow\n")
    # A library has this name; the file is found all the same, and so is the library.
    (tmp_path / "json.py").write_text(FLOW.format(task="c", name="third"))
    (tmp_path / "_private.py").write_text("raise RuntimeError")
    flows = load_flows(None, str(tmp_path))
    assert flows.names == ["first", "second", "third"]
    assert flows.broken == {}
    assert flows.resolve("second").name == "second"
    with pytest.raises(FlowNotFound, match="'other' is not known to this worker; known flows: first, second, third"):
        flows.resolve("other")


def test_a_broken_file_is_reported_and_hides_no_other(tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text("import sys\nsys.exit('no')\n")
    (tmp_path / "good.py").write_text(FLOW.format(task="a", name="good"))
    (tmp_path / "twice.py").write_text(FLOW.format(task="a", name="good"))
    (tmp_path / "typo.py").write_text("\nflow = Flow(\n")
    # Its own cause, and a chain of causes that no recursion gets through.
    (tmp_path / "knot.py").write_text("error = ValueError()\nraise error from error\n")
    chain = "error = ValueError()\nfor n in range(5000):\n    later = ValueError(n)\n    later.__cause__ = error\n"
    (tmp_path / "chain.py").write_text(f"{chain}    error = later\nraise error\n")
    flows = load_flows(None, str(tmp_path))
    assert flows.names == ["good"]
    assert flows.broken[str(tmp_path / "typo.py")].exc_origin == f"{tmp_path}/typo.py:2"
    assert flows.broken[str(tmp_path / "bad.py")].exc_type == "SystemExit"
    assert "bad.py" in flows.broken[str(tmp_path / "bad.py")].exc_traceback
    assert flows.broken[str(tmp_path / "knot.py")].exc_type == "ValueError"
    assert flows.broken[str(tmp_path / "chain.py")].exc_frames.count("and then") == 49
    assert "already offers a flow named 'good'" in flows.broken[str(tmp_path / "twice.py")].exc_message


def test_endless_recursion_is_reported_with_a_few_frames(tmp_path: Path) -> None:
    code = "def a(n):\n    b(n)\ndef b(n):\n    a(n)\na(1)\n"
    (tmp_path / "deep.py").write_text(code)
    [failure] = load_flows(None, str(tmp_path)).broken.values()
    assert failure.exc_type == "RecursionError"
    assert failure.exc_traceback.count("deep.py") > 100
    assert len(failure.exc_traceback) < 66_000
    assert failure.exc_frames.count("deep.py") == 50


def test_a_resolver_is_a_function_of_a_file_or_module(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        FLOW.format(task="a", name="good") + "def find(name):\n    return {'good': flow, 'odd': 1}[name]\n"
    )
    flows = load_flows(f"{tmp_path}/mine.py:find", None)
    assert flows.resolve("good").name == "good"
    with pytest.raises(FlowNotFound, match="'bad' is not known to the flow resolver"):
        flows.resolve("bad")
    with pytest.raises(TypeError, match="returned a int for 'odd', not a Flow"):
        flows.resolve("odd")
    assert load_flows("mine:find", None).resolve("good").name == "good"


@pytest.mark.parametrize(
    ("resolver", "folder", "sentence"),
    [
        ("nowhere.py:find", None, "file nowhere.py does not exist"),
        ("no_such_module:find", None, "cannot be imported .ModuleNotFoundError"),
        ("math:no_such_function", None, "cannot be imported .AttributeError"),
        ("math:pi", None, "is a float, not a function"),
        (None, "/no/such/folder", "folder /no/such/folder does not exist"),
        (None, None, "no flows were given"),
    ],
)
def test_flows_that_cannot_be_loaded_are_refused_with_a_sentence(
    resolver: str | None, folder: str | None, sentence: str
) -> None:
    with pytest.raises(FlowsUnusable, match=sentence):
        load_flows(resolver, folder)


def test_the_examples_can_be_loaded() -> None:
    flows = load_flows(None, str(EXAMPLES))
    assert flows.broken == {}
    assert flows.names == ["branching", "dag", "failing", "hello", "long"]
