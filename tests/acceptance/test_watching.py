"""Watching through the gateway: states arrive while the run goes on, not when it is over."""

import json
import time

import pytest

from fleet_testkit.fleet import Fleet
from fleet_testkit.runs import submit


@pytest.mark.also_composed("the nginx of the image")
def test_a_watcher_sees_a_run_go_on_and_end(stack: Fleet) -> None:
    run_id = submit(stack.client, "long", seconds=2)
    with stack.client.stream("GET", f"/runs/{run_id}/watch", timeout=30) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        news = (json.loads(line.removeprefix("data: ")) for line in answer.iter_lines() if line.startswith("data: "))
        heard = [(time.time(), data["snapshot"]["status"]) for data in news if "snapshot" in data]
    statuses = [status for _, status in heard]
    assert statuses[-1] == "COMPLETED"
    assert "RUNNING" in statuses
    # The first news came well before the last: nothing on the way waits for the stream to end.
    assert heard[-1][0] - heard[0][0] > 1.0
