"""Which wheels a worker should have: by tag, newest of each package that fits, and why others do not."""

import base64

import pytest

from fleet_contracts.wheel import WHEEL_TAGS_HEADER, join_tags
from fleet_kit.nats.stores.objects import DIGEST_PREFIX, StoredObject
from fleet_worker.wheels.choice import Interpreter, choose
from fleet_worker.wheels.own_packages import first_clash, own_packages, own_roots, roots_of

PYTHON = Interpreter({"cp311-cp311-linux_x86_64": 0, "cp311-abi3-linux_x86_64": 1, "py3-none-any": 2}, "3.11.7")
PURE = "py3-none-any.whl"


def wheel(name: str, *tags: str, nuid: str | None = None, sha256_hex: str | None = "00") -> StoredObject:
    digest = None if sha256_hex is None else DIGEST_PREFIX + base64.b64encode(bytes.fromhex(sha256_hex)).decode()
    headers = {WHEEL_TAGS_HEADER: join_tags(tags)}
    return StoredObject(name=name, nuid=nuid or name, digest=digest, headers=headers, sequence=1, modified=1.0)


CASES: dict[str, tuple[list[StoredObject], list[str], dict[str, str]]] = {
    "none": ([], [], {}),
    "a wheel without tags is for everybody": ([wheel(f"a-1-{PURE}")], [f"a-1-{PURE}"], {}),
    "one tag in common is enough": ([wheel(f"a-1-{PURE}", "gpu", "cpu")], [f"a-1-{PURE}"], {}),
    "no tag in common": ([wheel(f"a-1-{PURE}", "gpu")], [], {}),
    "tags are compared as a whole": ([wheel(f"a-1-{PURE}", "cpu2")], [], {}),
    "what is not meant for us is not skipped but none of our business": (
        [wheel("a-1-cp39-cp39-win32.whl", "gpu"), wheel("no wheel", "gpu")],
        [],
        {},
    ),
    "the newest by version and not by text": (
        [wheel(f"a-1.9-{PURE}"), wheel(f"a-1.10-{PURE}"), wheel(f"a-1.2-{PURE}")],
        [f"a-1.10-{PURE}"],
        {},
    ),
    "a release is newer than its candidates": (
        [wheel(f"a-2.0rc1-{PURE}"), wheel(f"a-2.0-{PURE}"), wheel(f"a-2.0.dev3-{PURE}")],
        [f"a-2.0-{PURE}"],
        {},
    ),
    "an epoch is newer than any version without": (
        [wheel(f"a-1!1-{PURE}"), wheel(f"a-9-{PURE}")],
        [f"a-1!1-{PURE}"],
        {},
    ),
    "names are one package however they are written": (
        [wheel(f"Acme_Tasks-1-{PURE}"), wheel(f"acme.tasks-2-{PURE}")],
        [f"acme.tasks-2-{PURE}"],
        {},
    ),
    "every package for itself, in order": (
        [wheel(f"b-1-{PURE}"), wheel(f"a-2-{PURE}")],
        [f"a-2-{PURE}", f"b-1-{PURE}"],
        {},
    ),
    "the newest that is meant for us": (
        [wheel(f"a-1-{PURE}", "cpu"), wheel(f"a-2-{PURE}", "gpu")],
        [f"a-1-{PURE}"],
        {},
    ),
    "the newest that fits": (
        [wheel(f"a-1-{PURE}"), wheel("a-2-cp312-cp312-linux_x86_64.whl"), wheel("a-3-py3-none-win32.whl")],
        [f"a-1-{PURE}"],
        {"a-2-cp312-cp312-linux_x86_64.whl": "no tag of it fits", "a-3-py3-none-win32.whl": "no tag of it fits"},
    ),
    "what is older than the chosen one and does not fit is not worth a word": (
        [wheel("a-1-cp39-cp39-win32.whl"), wheel(f"a-2-{PURE}")],
        [f"a-2-{PURE}"],
        {},
    ),
    "one of several tags is enough": ([wheel("a-1-py2.py3-none-any.whl")], ["a-1-py2.py3-none-any.whl"], {}),
    "of one version the closest to this Python": (
        [wheel(f"a-1-{PURE}"), wheel("a-1-cp311-abi3-linux_x86_64.whl"), wheel("a-1-cp39-cp39-win32.whl")],
        ["a-1-cp311-abi3-linux_x86_64.whl"],
        {},
    ),
    "of the same the highest build": ([wheel(f"a-1-2-{PURE}"), wheel(f"a-1-10-{PURE}")], [f"a-1-10-{PURE}"], {}),
    "nothing fits": ([wheel("a-1-cp39-cp39-win32.whl")], [], {"a-1-cp39-cp39-win32.whl": "cp311-cp311-linux_x86_64"}),
    "what its content has shown": (
        [wheel(f"a-1-{PURE}"), wheel(f"a-2-{PURE}", nuid="bad")],
        [f"a-1-{PURE}"],
        {f"a-2-{PURE}": "as found"},
    ),
    "without a digest": ([wheel(f"a-1-{PURE}", sha256_hex=None)], [], {f"a-1-{PURE}": "no SHA-256"}),
    "a package of the worker itself": ([wheel(f"Own_Lib-9-{PURE}")], [], {f"Own_Lib-9-{PURE}": "own-lib 1.5"}),
    "names that are none": (
        [
            wheel("a-1.whl"),
            wheel("../a-1-py3-none-any.whl"),
            wheel("a.zip"),
            wheel(f"a-one-{PURE}"),
            wheel(f"b-1-{PURE}"),
        ],
        [f"b-1-{PURE}"],
        dict.fromkeys(["a-1.whl", "../a-1-py3-none-any.whl", "a.zip", f"a-one-{PURE}"], "its name cannot be read"),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_rules_of_the_choice(case: str) -> None:
    candidates, selected, skipped = CASES[case]
    interpreter = Interpreter(PYTHON.ranks, PYTHON.version, {"own-lib": "1.5"})
    for order in (candidates, candidates[::-1]):
        choice = choose(order, worker_tags=["cpu", "default"], interpreter=interpreter, refused={"bad": "as found"})
        assert [wheel.name for wheel in choice.selected] == selected
        assert {wheel.name for wheel in choice.skipped} == skipped.keys()
        assert all(skipped[wheel.name] in wheel.reason for wheel in choice.skipped)


def test_a_chosen_wheel_has_all_that_is_known_of_it() -> None:
    registered = wheel(f"Acme_Tasks-1.0.post1-{PURE}", "cpu", "x", nuid="n1", sha256_hex="ab" * 32)
    (chosen,) = choose([registered], worker_tags=["cpu"], interpreter=PYTHON, refused={}).selected
    assert chosen.model_dump() == {
        "name": registered.name,
        "package": "acme-tasks",
        "version": "1.0.post1",
        "nuid": "n1",
        "sha256_hex": "ab" * 32,
        "tags": ["cpu", "x"],
    }


@pytest.mark.parametrize(
    ("requires", "accepted"),
    [
        (None, True),
        ("", True),
        (">=3.11", True),
        (">=3.11.7,<4", True),
        (">=3.12", False),
        ("<3", False),
        ("???", True),
    ],
)
def test_the_python_that_a_wheel_requires(requires: str | None, accepted: bool) -> None:
    assert PYTHON.accepts(requires) is accepted


def test_this_python_takes_pure_wheels_and_its_own() -> None:
    here = Interpreter.here({})
    assert "py3-none-any" in here.ranks
    assert here.kind.startswith("cp3")


def test_the_worker_is_made_of_what_it_requires_and_of_what_that_requires() -> None:
    assert {
        "pyoco-fleet-worker",
        "pyoco-fleet-kit",
        "pyoco",
        "nats-py",
        "pydantic-core",
        "pip",
    } <= own_packages().keys()
    assert "pytest" not in own_packages()
    assert {"pyoco", "fleet_worker", "orjson", "json"} <= own_roots()


@pytest.mark.parametrize(
    ("files", "clash"),
    [
        (["acme/__init__.py", "acme/tasks.py", "acme/data.json"], None),
        (["pyoco/__init__.py"], "pyoco"),
        (["pyoco/extra/more.py"], "pyoco/extra/more"),
        (["pyoco.py"], "pyoco"),
        (["orjson/orjson.cpython-311-x86_64-linux-gnu.so"], "orjson/orjson"),
        (["json.py"], "json"),
        (["shared/mine/__init__.py", "shared/mine/x.py"], None),
        (["shared/__init__.py", "shared/mine.py"], "shared"),
        (["shared/theirs/more.py"], "shared/theirs/more"),
        (["pyoco.txt", "docs/pyoco.md"], None),
    ],
)
def test_a_wheel_may_share_a_folder_with_the_worker_but_not_hide_anything_in_it(
    files: list[str], clash: str | None
) -> None:
    own = roots_of(["pyoco/__init__.py", "pyoco/x.py", "orjson/__init__.py", "json.py", "shared/theirs/__init__.py"])
    assert first_clash(roots_of(files), own) == clash
