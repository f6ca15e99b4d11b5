"""`./fleet test`: the quick checks first, then the tests from the inside out."""

import compileall
import math
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

import psutil

from .containers.compose import why_no_engine

PACKAGES = (
    "fleet_contracts",
    "fleet_kit",
    "fleet_runs_api",
    "fleet_workers_api",
    "fleet_wheels_api",
    "fleet_auth",
    "fleet_worker",
    "fleet_gateway",
    "fleet_launcher",
    "pyoco_fleet",
    "fleet_testkit",
    "bench",
)


@dataclass(frozen=True)
class Step:
    title: str
    command: list[str]
    # The time budget on two cores; a step over its budget lists its slowest test files.
    budget_seconds: int | None = None
    # Left out, with a message, where no container engine answers.
    in_containers: bool = False


def _module(name: str, *arguments: str) -> list[str]:
    return [sys.executable, "-m", name, *arguments]


def _side_by_side(*arguments: str, per_core: int) -> list[str]:
    """Run test files in parallel, long ones first, and each in one process, which starts its stacks once."""
    processes = str(per_core * (os.cpu_count() or 1))
    by_file = ("--dist", "loadfile", "--no-loadscope-reorder")
    return _module("pytest", "-n", processes, *by_file, "-m", "not alone", *arguments)


def _composed(*arguments: str) -> list[str]:
    # The cluster, the other tests of containers, and acceptance.
    return _module("pytest", "-n", "3", *arguments, "--fleet", "composed")


_PACKAGES = ("contracts", "kit", "services", "gateway-nginx", "worker", "launcher", "client")
_STACK = ("tests", "--ignore", "tests/containers")


def _files_marked(mark: str) -> list[str]:
    """The test files that use a mark, found by text: pytest would import all of them, which takes 20 s."""
    words = f"pytest.mark.{mark}"
    files = (file for folder in (*_PACKAGES, "tests") for file in Path(folder).rglob("test_*.py"))
    return sorted(str(file) for file in files if words in file.read_text())


CHECKS = (
    Step("lint (ruff)", _module("ruff", "check", "."), 2),
    Step("format (ruff)", _module("ruff", "format", "--check", "--quiet", "."), 2),
    Step("types (mypy, strict)", _module("mypy", *(word for p in PACKAGES for word in ("-p", p))), 10),
    Step("layers (import-linter)", [str(Path(sys.executable).parent / "lint-imports"), "--no-logo"], 3),
    Step("generated files are up to date", _module("fleet_testkit.documents", "--check-reference"), 4),
    Step(
        "migrations make the models' tables",
        _module(
            "pytest", "-q", "--no-header", "--durations=0", "services/runs-api/tests/test_ledger.py", "-k", "migrat"
        ),
        5,
    ),
)
TESTS = (
    # These mostly wait.
    Step("packages, each alone with real parts", _side_by_side(*_PACKAGES, per_core=3), 230),
    # Each process has shared stacks of its own, which take the time that more processes would save.
    Step(
        "the whole stack through the gateway: acceptance, chaos, traces, docs",
        _side_by_side(*_STACK, per_core=2),
        230,
    ),
    Step("what needs the machine for itself", _module("pytest", "-m", "alone", *_files_marked("alone")), 90),
    Step(
        "containers: images, compose, operations, acceptance",
        _composed("tests/containers", "tests/acceptance"),
        340,
        in_containers=True,
    ),
)
# For a release: every acceptance test that can, against the fleet in containers.
ALL = (
    Step(
        "acceptance, all of it in containers",
        _composed("tests/acceptance", "--all-composed"),
        360,
        in_containers=True,
    ),
)

_MEMORY = Path("/dev/shm")
_ROOM_BYTES = 6 * 1024**3

HELP = """usage: ./fleet test [--quick | --all] [-- PYTEST_ARGS]

Runs every check and every test. --quick runs only the checks; --all also runs, for releases, every acceptance test
against the fleet in containers. Tests in containers run where an engine answers.
Their files are kept in memory where there is room, else (or with TMPDIR set) on disk.
Arguments after -- go to one pytest run instead of all the steps, for example:
  ./fleet test -- worker -k claim -x
"""


@contextmanager
def _scratch() -> Iterator[dict[str, str]]:
    """The environment of the tests, with their TMPDIR in memory if there is room.

    Every NATS and every ledger of a test syncs to disk. On a busy disk each of them blocks for seconds, and the tests
    would measure the disk.
    """
    if "TMPDIR" in os.environ or not _has_room(_MEMORY):
        yield dict(os.environ)
        return
    with tempfile.TemporaryDirectory(prefix="fleet-", dir=_MEMORY, ignore_cleanup_errors=True) as folder:
        yield {**os.environ, "TMPDIR": folder}


def _compile_sources() -> None:
    """Compile our packages once: tests start hundreds of processes, and each saves 0.3 s of CPU time."""
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    for source in (*Path().glob("*/src"), *Path().glob("services/*/src")):
        compileall.compile_dir(source, quiet=2)


def _has_room(folder: Path) -> bool:
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        return False
    may_execute = not os.statvfs(folder).f_flag & os.ST_NOEXEC
    return may_execute and min(psutil.virtual_memory().available, shutil.disk_usage(folder).free) >= _ROOM_BYTES


def _run(
    steps: Sequence[Step], env: dict[str, str], reports: Path, without_engine: str | None
) -> tuple[list[str], list[str]]:
    """Run the steps; return the titles of those that failed and of those left out."""
    failed = []
    left_out = []
    for number, step in enumerate(steps, 1):
        print(f"\n=== {number}/{len(steps)} {step.title}", flush=True)
        if step.in_containers and without_engine is not None:
            print(f"--- LEFT OUT: {without_engine}", flush=True)
            left_out.append(step.title)
            continue
        since = time.monotonic()
        report = reports / f"{number}.xml"
        command = [*step.command, f"--junitxml={report}"] if "pytest" in step.command else step.command
        # The container engine may not see this machine's /dev/shm.
        outcome = subprocess.run(command, check=False, env=None if step.in_containers else env).returncode
        seconds = time.monotonic() - since
        budget = "" if step.budget_seconds is None else f" (budget {step.budget_seconds} s)"
        print(f"--- {'ok' if outcome == 0 else 'FAILED'} in {seconds:.0f} s{budget}", flush=True)
        if report.exists() and seconds > (step.budget_seconds or math.inf):
            print(f"--- over its budget; most of it went to:\n{_costliest(report)}", flush=True)
        if outcome != 0:
            failed.append(step.title)
            if step in CHECKS:
                break
    return failed, left_out


def _costliest(report: Path, *, files: int = 8) -> str:
    """The test files that took longest, by pytest's own report: seconds, tests, file."""
    seconds: dict[str, float] = defaultdict(float)
    tests: Counter[str] = Counter()
    for case in ElementTree.parse(report).iter("testcase"):
        file = case.get("classname", "")
        seconds[file] += float(case.get("time", "0"))
        tests[file] += 1
    worst = sorted(seconds, key=seconds.__getitem__, reverse=True)[:files]
    return "\n".join(f"    {seconds[file]:6.1f} s {tests[file]:5} tests  {file}" for file in worst)


def main() -> int:
    arguments = sys.argv[1:]
    if "--help" in arguments or "-h" in arguments:
        print(HELP)
        return 0
    if "--" in arguments:
        own, passed_on = arguments[: arguments.index("--")], arguments[arguments.index("--") + 1 :]
        steps: tuple[Step, ...] = (Step("pytest " + " ".join(passed_on), _module("pytest", *passed_on)),)
    else:
        own = arguments
        steps = CHECKS if "--quick" in own else CHECKS + TESTS + (ALL if "--all" in own else ())
    if unknown := set(own) - {"--quick", "--all"}:
        print(f"fleet test: unknown option {' '.join(sorted(unknown))}\n\n{HELP}", file=sys.stderr)
        return 1

    without_engine = why_no_engine() if any(step.in_containers for step in steps) else None
    begun = time.monotonic()
    _compile_sources()
    with _scratch() as env, tempfile.TemporaryDirectory() as reports:
        failed, left_out = _run(steps, env, Path(reports), without_engine)
    took = time.monotonic() - begun
    if failed:
        print(f"\nfleet test: FAILED after {took:.0f} s: {'; '.join(failed)}")
        return 1
    print(f"\nfleet test: {len(steps) - len(left_out)} of {len(steps)} steps passed in {took:.0f} s")
    if left_out:
        print(f"fleet test: LEFT OUT for want of a container engine: {'; '.join(left_out)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
