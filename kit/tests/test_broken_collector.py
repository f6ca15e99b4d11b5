"""A collector that does not do its work costs some memory, two lines a minute and a moment at the end."""

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from fleet_testkit.broken_collectors import Broken, broken_collector

# Far more than the queue holds: kept, these spans would be some 60 MB.
SPANS = 30_000
SCRIPT = f"""
import json, sys, time
import psutil
from fleet_kit.logs.setup import configure_logging
from fleet_kit.settings import FleetSettings
from fleet_kit.telemetry.setup import configure_tracing, stop_tracing
from fleet_kit.telemetry.tracing import span

configure_logging(service="test", component="test", settings=FleetSettings())
tracing = configure_tracing("test")

def work(count):
    begun = time.perf_counter()
    for number in range(count):
        with span("work", {{"pyoco.run.id": f"{{number:036}}", "pyoco.flow.name": "f"}}, begins_trace=True):
            pass
    return time.perf_counter() - begun

memory = psutil.Process().memory_info
work(5000)
before = memory().rss
seconds = work({SPANS})
grown = memory().rss - before
begun = time.perf_counter()
stop_tracing(tracing)
figures = {{"seconds": seconds, "grown_bytes": grown, "stop_seconds": time.perf_counter() - begun}}
print(json.dumps(figures), file=sys.stderr)
"""


def made_with(env: dict[str, str]) -> tuple[dict[str, float], list[dict[str, Any]]]:
    """What a process measures that makes many spans, and what it logs."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("PYOCO_", "OTEL_"))}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env=inherited | env,
        check=True,
        capture_output=True,
        text=True,
        timeout=120,
    )
    return json.loads(done.stderr), [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("how", Broken)
def test_it_costs_little_and_each_part_reports_it_once(how: Broken, capsys: pytest.CaptureFixture[str]) -> None:
    with broken_collector(how) as env:
        figures, lines = made_with(env)
    with capsys.disabled():
        each = figures["seconds"] / SPANS * 1e6
        grown = figures["grown_bytes"] / 2**20
        print(
            f"\n[figures] the collector {how}: {each:.0f} µs per span, {grown:+.1f} MiB after {SPANS} spans, ", end=""
        )
        print(f"stopped after {figures['stop_seconds']:.1f} s")
    assert figures["grown_bytes"] < 20 * 2**20
    # Left alone, the library would wait for up to 30 s.
    assert figures["stop_seconds"] < 8
    failures = [line["message"] for line in lines if line["message"].startswith("spans cannot be exported")]
    # Once by the exporter, and once by the queue.
    assert 1 <= len(failures) == len(set(failures)) <= 2
    if how is not Broken.FAILS:  # else it may keep up with us
        assert any("Queue full, dropping Span" in failure for failure in failures)
    assert len(lines) <= 3
    assert {line["level"] for line in lines} == {"WARNING"}
