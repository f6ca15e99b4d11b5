"""Where flows come from, and what is said when they cannot be had."""

from pathlib import Path

import pytest

from fleet_worker.runner.loading.flows import FlowNotFound, FlowsUnusable, load_flows

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
    (tmp_path / "typo.py").write_text("\nflow = Flow(\n")
    # Its own cause, and a chain of causes that no recursion gets through.
    (tmp_path / "knot.py").write_text("error = ValueError()\nraise error from error\n")
    chain = "error = ValueError()\nfor n in range(5000):\n    later = ValueError(n)\n    later.__cause__ = error\n"
    (tmp_path / "chain.py").write_text(f"{chain}    error = later\nraise error\n")
    flows = load_flows(None, str(tmp_path))
    assert flows.names == ["good"]
    assert {(one.place, one.line) for one in flows.catalogue().broken} >= {
        *(("typo.py", 2), ("bad.py", 2), ("knot.py", 2), ("chain.py", 6))
    }
    assert flows.broken[str(tmp_path / "typo.py")].exc_origin == f"{tmp_path}/typo.py:2"
    assert flows.broken[str(tmp_path / "bad.py")].exc_type == "SystemExit"
    assert "bad.py" in flows.broken[str(tmp_path / "bad.py")].exc_traceback
    assert flows.broken[str(tmp_path / "knot.py")].exc_type == "ValueError"
    assert flows.broken[str(tmp_path / "chain.py")].exc_frames.count("and then") == 49


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def test_a_name_that_two_files_define_is_refused_with_both(tmp_path: Path) -> None:
    # The one that only imports a flow does not define it.
    write(
        tmp_path,
        {
            "a.py": "from z import flow\nmine = flow\n",
            "one.py": FLOW.format(task="a", name="good"),
            "sub/two.py": FLOW.format(task="a", name="good"),
            "z.py": FLOW.format(task="a", name="imported"),
        },
    )
    flows = load_flows(None, str(tmp_path))
    assert flows.names == ["imported"]
    [offer] = flows.catalogue().flows
    assert (offer.source.place, offer.source.line) == ("z.py", 5)
    with pytest.raises(
        FlowNotFound, match=r"'good' is defined more than once.* in one.py:5 and in sub/two.py:5; give"
    ):
        flows.resolve("good")
    [broken] = flows.catalogue().broken
    assert (broken.place, broken.line, broken.exc_type) == ("sub/two.py", 5, "FlowNameTaken")


def test_the_name_of_an_address_is_refused(tmp_path: Path) -> None:
    write(tmp_path, {"shop.py": FLOW.format(task="a", name="events"), "two.py": FLOW.format(task="a", name="good")})
    flows = load_flows(None, str(tmp_path))
    assert flows.names == ["good"]
    sentence = (
        "'events' cannot be used: its name is reserved for the address /flows/events; give the flow another name"
    )
    with pytest.raises(FlowNotFound, match=sentence):
        flows.resolve("events")
    [broken] = flows.catalogue().broken
    assert (broken.place, broken.line, broken.message) == ("shop.py", 5, f"flow {sentence}")


def test_subfolders_and_packages_are_read_and_import_their_neighbours(tmp_path: Path) -> None:
    uses = "from {module} import {name}\n"
    write(
        tmp_path,
        {
            "shared.py": "VALUE = 1\n",
            "plain/orders.py": "from shared import VALUE\nfrom .sizes import S\nfrom plain.sizes import S\n"
            + FLOW.format(task="a", name="plain"),
            "plain/sizes.py": "S = 1\n",
            "package/__init__.py": FLOW.format(task="a", name="of package"),
            "package/deep/orders.py": uses.format(module="..other", name="X") + FLOW.format(task="a", name="deep"),
            "package/other.py": "X = 1\n",
            # Libraries have these names.
            "email/__init__.py": "",
            "email/mine.py": "import email.message\nfrom .own import Y\n" + FLOW.format(task="a", name="hidden"),
            "email/own.py": "Y = 1\n",
            "json/mine.py": "import json\njson.dumps(1)\n" + FLOW.format(task="a", name="also hidden"),
            "my-things/a.b.py": FLOW.format(task="a", name="dotted"),
            # Not read.
            "_drafts/bad.py": "raise RuntimeError",
            ".git/bad.py": "raise RuntimeError",
            "env/pyvenv.cfg": "",
            "env/lib/bad.py": "raise RuntimeError",
            "project/pyproject.toml": "",
            "project/bad.py": "raise RuntimeError",
        },
    )
    flows = load_flows(None, str(tmp_path))
    assert flows.broken == {}
    assert flows.names == ["also hidden", "deep", "dotted", "hidden", "of package", "plain"]
    places = {offer.name: offer.source.place for offer in flows.catalogue().flows}
    assert places["deep"] == "package/deep/orders.py"
    assert places["of package"] == "package/__init__.py"


def test_what_is_broken_is_told_with_the_line_of_the_users_file(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "caller.py": "\nimport json\njson.loads('{')\n",
            "importer.py": "\n\nimport typo\n",
            "typo.py": "x = 1\ny = = 2\n",
            "sub/needs.py": "import other\n",
            "sub/other.py": "",
        },
    )
    broken = {one.place: one for one in load_flows(None, str(tmp_path)).catalogue().broken}
    assert {place: (one.exc_type, one.line) for place, one in broken.items()} == {
        "caller.py": ("JSONDecodeError", 3),
        "importer.py": ("SyntaxError", 3),
        "typo.py": ("SyntaxError", 2),
        "sub/needs.py": ("ModuleNotFoundError", 1),
    }
    assert broken["importer.py"].message == "invalid syntax (typo.py, line 2)"
    assert broken["sub/needs.py"].message.endswith("it is in the same subfolder: write `from . import other`")


OPTIONS = """
import dataclasses

@dataclasses.dataclass
class Options:
    retry: dict
    timeout_sec: float = None
    tag: str = "gpu"

"""


def test_options_beside_a_flow_are_its_defaults(tmp_path: Path) -> None:
    def flow(name: str) -> str:
        return FLOW.format(task=name, name=name).replace("pass", f'"""What {name} does.\n\n    More."""')

    write(
        tmp_path,
        {
            "one.py": flow("a") + "flow.fleet = {'retry': 3, 'timeout_sec': 60, 'description': 'The first.'}",
            "two.py": OPTIONS + flow("b") + "flow.fleet = Options({'max_attempts': 2, 'base_seconds': 0.5})",
            "three.py": '"""About this\nfile.\n\nMore."""\n' + FLOW.format(task="c", name="c"),
            "unknown.py": flow("d") + "flow.fleet = {'retries': 3}",
            "wrong.py": flow("e") + "flow.fleet = {'timeout_sec': -1}",
            "deep.py": flow("f") + "flow.fleet = {'retry': {'max': 1}}",
            "odd.py": flow("g") + "flow.fleet = 7",
        },
    )
    flows = load_flows(None, str(tmp_path))
    a, b, c = flows.catalogue().flows
    assert (a.description, a.defaults.timeout_sec, a.defaults.tag) == ("The first.", 60, None)
    assert a.defaults.retry is not None
    assert a.defaults.retry.max_attempts == 3
    assert b.defaults.retry is not None
    assert (b.description, b.defaults.tag, b.defaults.retry.base_seconds) == ("What b does.", "gpu", 0.5)
    assert c.description == "About this file."
    broken = {one.place: one.message.partition("options are wrong: ")[2] for one in flows.catalogue().broken}
    assert broken == {
        "unknown.py": "there is no option 'retries'; known: retry, timeout_sec, tag, description",
        "wrong.py": "option 'timeout_sec': Input should be greater than 0",
        "deep.py": "option 'retry': Value error, unknown: max",
        "odd.py": "it is a int, not a dict or an object with attributes",
    }
    with pytest.raises(FlowNotFound, match=r"flow 'd' of unknown\.py:7 cannot be used: its options are wrong"):
        flows.resolve("d")


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
    assert flows.names == ["branching", "dag", "failing", "forecast", "hello", "long"]
