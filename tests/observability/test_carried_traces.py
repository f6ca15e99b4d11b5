"""On a stack that exports nothing, a trace that a client brings is carried all the way."""

import json

import pytest

from fleet_contracts.trace_context import TraceContext
from fleet_testkit.runs import submit, wait_ended
from fleet_testkit.stack import Stack
from fleet_testkit.waiting import wait_until

pytestmark = pytest.mark.embedded_only("reads the worker's log where the launcher puts it")

CLIENT = TraceContext("3af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331")


def test_a_clients_trace_is_in_its_run_and_in_log_lines(stack: Stack) -> None:
    answer = stack.client.post("/runs", json={"flow_name": "hello"}, headers=CLIENT.headers)
    run_id = answer.json()["run_id"]
    [ended] = wait_ended(stack.client, [run_id])
    assert ended["trace_id"] == CLIENT.trace_id
    assert "traceparent" not in answer.headers

    def logged() -> list[dict[str, object]]:
        lines = [json.loads(line) for line in stack.log("worker-1").splitlines() if run_id in line]
        return [line for line in lines if line.get("trace_id") == CLIENT.trace_id]

    assert wait_until(logged, what="a line of the worker with the trace")[0]["span_id"] == CLIENT.span_id


def test_a_run_that_nobody_traces_has_no_trace(stack: Stack) -> None:
    [ended] = wait_ended(stack.client, [submit(stack.client, "hello")])
    assert "trace_id" not in ended
