"""`./fleet test`: the quick checks first, then the tests from the inside out."""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from .compose import why_no_engine

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
    "fleet_testkit",
    "bench",
)


@dataclass(frozen=True)
class Step:
    title: str
    command: list[str]
    # Left out, and said so, where no container engine answers.
    in_containers: bool = False


def _module(name: str, *arguments: str) -> list[str]:
    return [sys.executable, "-m", name, *arguments]


CHECKS = (
    Step("lint (ruff)", _module("ruff", "check", ".")),
    Step("format (ruff)", _module("ruff", "format", "--check", "--quiet", ".")),
    Step("types (mypy, strict)", _module("mypy", *(word for p in PACKAGES for word in ("-p", p)))),
    Step("walls between packages (import-linter)", [str(Path(sys.executable).parent / "lint-imports"), "--no-logo"]),
    Step(
        "migrations make the models' tables",
        _module(
            "pytest", "-q", "--no-header", "--durations=0", "services/runs-api/tests/test_ledger.py", "-k", "migrat"
        ),
    ),
)
TESTS = (
    Step("contracts and kit", _module("pytest", "contracts", "kit")),
    Step("services and gateway, each alone with real parts", _module("pytest", "services", "gateway-nginx")),
    Step("worker", _module("pytest", "worker")),
    Step("launcher", _module("pytest", "launcher")),
    Step(
        "acceptance: the whole stack through the gateway", _module("pytest", "tests", "--ignore", "tests/containers")
    ),
    Step("containers: images, compose, operations", _module("pytest", "tests/containers"), in_containers=True),
    Step(
        "acceptance once more, through the gateway of the fleet in containers",
        _module("pytest", "tests/acceptance", "--fleet", "composed"),
        in_containers=True,
    ),
)

_MEMORY = Path("/dev/shm")
_ROOM_BYTES = 6 * 1024**3

HELP = """usage: ./fleet test [--quick] [-- PYTEST_ARGS]

Runs every check and every test. --quick runs only the checks. Tests in containers run where an engine answers.
Their files are kept in memory where there is room, else (or with TMPDIR set) on disk.
Arguments after -- go to one pytest run instead of all the steps, for example:
  ./fleet test -- worker -k claim -x
"""


@contextmanager
def _scratch() -> Iterator[dict[str, str]]:
    """Where the tests keep their files: in memory, if there is room.

    Every NATS and every ledger of a test writes through to its disk. On a disk that is busy with others' work each of
    them stands still for seconds, and what was to be tested was the disk.
    """
    if "TMPDIR" in os.environ or not _has_room(_MEMORY):
        yield dict(os.environ)
        return
    with tempfile.TemporaryDirectory(prefix="fleet-", dir=_MEMORY, ignore_cleanup_errors=True) as folder:
        yield {**os.environ, "TMPDIR": folder}


def _has_room(folder: Path) -> bool:
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        return False
    may_execute = not os.statvfs(folder).f_flag & os.ST_NOEXEC
    return may_execute and min(psutil.virtual_memory().available, shutil.disk_usage(folder).free) >= _ROOM_BYTES


def _run(steps: Sequence[Step], env: dict[str, str], without_engine: str | None) -> tuple[list[str], list[str]]:
    """The titles of the steps that failed, and of those that were left out."""
    failed = []
    left_out = []
    for number, step in enumerate(steps, 1):
        print(f"\n=== {number}/{len(steps)} {step.title}", flush=True)
        if step.in_containers and without_engine is not None:
            print(f"--- LEFT OUT: {without_engine}", flush=True)
            left_out.append(step.title)
            continue
        since = time.monotonic()
        # The engine may not see this machine's memory as a folder.
        outcome = subprocess.run(step.command, check=False, env=None if step.in_containers else env).returncode
        print(f"--- {'ok' if outcome == 0 else 'FAILED'} in {time.monotonic() - since:.0f} s", flush=True)
        if outcome != 0:
            failed.append(step.title)
            if step in CHECKS:
                break
    return failed, left_out


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
        steps = CHECKS if "--quick" in own else CHECKS + TESTS
    if unknown := set(own) - {"--quick"}:
        print(f"fleet test: unknown option {' '.join(sorted(unknown))}\n\n{HELP}", file=sys.stderr)
        return 1

    without_engine = why_no_engine() if any(step.in_containers for step in steps) else None
    begun = time.monotonic()
    with _scratch() as env:
        failed, left_out = _run(steps, env, without_engine)
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
