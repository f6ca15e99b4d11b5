"""Timeline, logs and result through the gateway: while a run goes on and when it has ended."""

import json
import time
from typing import Any

import httpx
import pytest

from fleet_contracts.status import RunStatus
from fleet_testkit.fleet import Fleet
from fleet_testkit.runs import submit, wait_status


def followed(answer: httpx.Response) -> list[tuple[float, str, dict[str, Any]]]:
    """When each event came, what it is, and what it says."""
    heard = []
    kind = ""
    for line in answer.iter_lines():
        name, _, value = line.partition(": ")
        if name == "event":
            kind = value
        elif name == "data":
            heard.append((time.monotonic(), kind, json.loads(value)))
    return [event for event in heard if event[1] != "heartbeat"]


def test_what_a_run_did_said_and_returned_is_there_when_it_has_ended(stack: Fleet) -> None:
    run_id = submit(stack.client, "hello", name="Grüße 世界")
    wait_status(stack.client, run_id, RunStatus.COMPLETED)
    log = stack.client.get(f"/runs/{run_id}/logs")
    assert log.headers["content-type"] == "text/plain; charset=utf-8"
    assert log.text == "greeting Grüße 世界\nHello, Grüße 世界!\n"
    chosen = stack.client.get(f"/runs/{run_id}/logs", params={"task": "greet", "prefix": 1})
    assert chosen.text == "[greet] Hello, Grüße 世界!\n"
    result = stack.client.get(f"/runs/{run_id}/result").json()
    assert result["status"] == "COMPLETED"
    assert result["result"] == "Hello, Grüße 世界!"
    assert result["outputs"] == {"choose": "Grüße 世界", "greet": "Hello, Grüße 世界!"}
    page = stack.client.get(f"/runs/{run_id}/events").json()
    assert (page["next"], page["truncated"], page["missing_batches"]) == (None, False, 0)
    states = [(event["task"], event["status"]) for event in page["events"] if event["status"]]
    assert states == [
        (None, "RUNNING"),
        ("choose", "RUNNING"),
        ("choose", "SUCCEEDED"),
        ("greet", "RUNNING"),
        ("greet", "SUCCEEDED"),
        (None, "COMPLETED"),
    ]


@pytest.mark.also_composed("the nginx of the image")
def test_output_arrives_while_the_run_goes_on(stack: Fleet) -> None:
    run_id = submit(stack.client, "long", seconds=2)
    assert stack.client.get(f"/runs/{run_id}/result").status_code == 409
    with stack.client.stream("GET", f"/runs/{run_id}/logs", params={"follow": 1}, timeout=30) as answer:
        heard = followed(answer)
    assert "".join(data["text"] for _, kind, data in heard if kind == "log") == "".join(
        f"step {step} of 10\n" for step in range(1, 11)
    )
    assert (heard[-1][1], heard[-1][2]["status"]) == ("end", "COMPLETED")
    # The first words came well before the last: nothing on the way waits for the stream to end.
    assert heard[-1][0] - heard[0][0] > 1.0
