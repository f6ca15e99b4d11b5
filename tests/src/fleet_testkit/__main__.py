"""`./fleet test`: the quick checks first, then the tests from the inside out."""

import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

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

HELP = """usage: ./fleet test [--quick] [-- PYTEST_ARGS]

Runs every check and every test. --quick runs only the checks. Tests in containers run where an engine answers.
Arguments after -- go to one pytest run instead of all the steps, for example:
  ./fleet test -- worker -k claim -x
"""


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

    failed = []
    left_out = []
    without_engine = why_no_engine() if any(step.in_containers for step in steps) else None
    begun = time.monotonic()
    for number, step in enumerate(steps, 1):
        print(f"\n=== {number}/{len(steps)} {step.title}", flush=True)
        if step.in_containers and without_engine is not None:
            print(f"--- LEFT OUT: {without_engine}", flush=True)
            left_out.append(step.title)
            continue
        since = time.monotonic()
        outcome = subprocess.run(step.command, check=False).returncode
        print(f"--- {'ok' if outcome == 0 else 'FAILED'} in {time.monotonic() - since:.0f} s", flush=True)
        if outcome != 0:
            failed.append(step.title)
            if step in CHECKS:
                break
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
