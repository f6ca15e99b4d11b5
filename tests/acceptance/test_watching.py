"""Watching through the gateway: states arrive while the run goes on, not when it is over."""

import json
import time
import uuid

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


def test_many_runs_are_awaited_in_one_stream_with_their_results(stack: Fleet) -> None:
    long, short = submit(stack.client, "long", seconds=2), submit(stack.client, "hello")
    missing = str(uuid.uuid4())
    with stack.client.stream(
        "POST", "/runs/watch", params={"results": 1}, json={"run_ids": [long, short, missing]}, timeout=30
    ) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        heard = [
            (time.time(), line.partition(": ")[2]) for line in answer.iter_lines() if line[:5] in ("event", "data:")
        ]
    kinds, data = [kind for _, kind in heard[::2]], [json.loads(text) for _, text in heard[1::2]]
    assert (kinds[0], data[0]["run_ids"]) == ("unknown", [missing])
    assert (kinds.count("ready"), kinds[-1], data[-1]) == (1, "end", {"runs": 2})
    ends = {run["run_id"]: run for run in data if run.get("ended") is True}
    assert {run_id: run["status"] for run_id, run in ends.items()} == {long: "COMPLETED", short: "COMPLETED"}
    # The first news came well before the last: nothing on the way waits for the stream to end.
    assert heard[-1][0] - heard[0][0] > 1.0
    page = stack.client.post("/runs/results", json={"run_ids": [short, missing, long]}).json()
    assert page["next"] is None
    assert [run["status"] for run in page["results"]] == ["COMPLETED", None, "COMPLETED"]
    alone = stack.client.get(f"/runs/{short}/result").json()
    assert alone.items() <= page["results"][0].items()
    assert page["results"][0] == ends[short]
