"""pyoco-client mcp with the real client of the MCP SDK over stdio, on a whole fleet."""

import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, StdioServerParameters
from mcp_types import CallToolResult, TextContent

from fleet_testkit.fleet import Fleet
from fleet_testkit.nats_server import free_port
from fleet_testkit.runs import submit, wait_ended
from fleet_testkit.waiting import wait_until

COMMAND = Path(sys.executable).with_name("pyoco-client")
READING = {
    "examine_fleet",
    "list_runs",
    "read_run",
    "why_run",
    "read_logs",
    "read_result",
    "list_flows",
    "read_flow",
    "list_workers",
    "list_dead_letters",
    "list_dead_letter_groups",
}
WRITING = {"submit_run", "rerun_run", "cancel_run", "requeue_dead_letters"}


def environment(url: str) -> dict[str, str]:
    outside = {name: value for name, value in os.environ.items() if not name.startswith("PYOCO_")}
    return {**outside, "HOME": "/nonexistent", "PYOCO_SERVER": url}


@asynccontextmanager
async def assistant(url: str, *options: str) -> AsyncIterator[Client]:
    server = StdioServerParameters(command=str(COMMAND), args=["mcp", *options], env=environment(url))
    async with Client(server, read_timeout_seconds=30) as client:
        yield client


def text_of(answer: CallToolResult) -> str:
    [content] = answer.content
    assert isinstance(content, TextContent)
    return content.text


async def call(client: Client, tool: str, **arguments: Any) -> Any:
    answer = await client.call_tool(tool, arguments)
    assert not answer.is_error, text_of(answer)
    return json.loads(text_of(answer))


def ended(fleet: Fleet, run_id: str) -> str:
    [run] = wait_ended(fleet.client, [run_id])
    return str(run["status"])


def letter_of(fleet: Fleet, run_id: str) -> int:
    """Letters enter the ledger a moment after their run has failed."""

    def items() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = fleet.client.get("/dlq", params={"run_id": run_id}).json()["items"]
        return found

    return int(wait_until(items, what=f"the dead letter of {run_id}")[0]["id"])


async def refusal(client: Client, tool: str, **arguments: Any) -> str:
    answer = await client.call_tool(tool, arguments)
    assert answer.is_error
    return text_of(answer)


async def test_without_writes_every_tool_is_annotated_read_only_and_refuses_with_the_servers_sentence(
    stack: Fleet,
) -> None:
    async with assistant(stack.url) as client:
        tools = (await client.list_tools()).tools
        assert "There is no such run; check the run id. (ERR-PYOCO-0005" in await refusal(
            client, "read_run", run_id="11111111-1111-4111-8111-111111111111"
        )
        assert "limit" in await refusal(client, "list_runs", limit=1000)
        assert "no live worker offers this flow" in await refusal(client, "read_flow", flow="nope")
        # It is not there at all.
        assert "submit_run" in await refusal(client, "submit_run", flow="hello")
    assert {tool.name for tool in tools} == READING
    for tool in tools:
        assert tool.annotations is not None
        assert tool.annotations.read_only_hint
        assert tool.description


async def test_it_reads_runs_logs_results_flows_workers_and_dead_letters(stack: Fleet) -> None:
    hello, failing = submit(stack.client, "hello", name="Ada"), submit(stack.client, "failing")
    waiting = submit(stack.client, "hello", tag="nobody-for-mcp")
    wait_ended(stack.client, [hello, failing])
    letter_of(stack, failing)
    async with assistant(stack.url) as client:
        listed = await call(client, "list_runs", status=["COMPLETED"], flow="hello", limit=1)
        assert [run["flow_name"] for run in listed["runs"]] == ["hello"]
        read = await call(client, "read_run", run_id=hello, records=True)
        assert read["task_records"]["greet"]["state"] == "SUCCEEDED"
        assert "Ada" in json.dumps((await call(client, "read_result", run_id=hello))["result"])
        why = await call(client, "why_run", run_id=failing)
        assert "ValueError" in why["traceback"]
        assert "no live worker serves tag" in (await call(client, "why_run", run_id=waiting))["sentences"][0]
        logs = await call(client, "read_logs", run_id=hello)
        assert logs["total_lines"] >= 1
        flows = await call(client, "list_flows")
        assert "hello" in {flow["name"] for flow in flows["flows"]}
        assert "name" in (await call(client, "read_flow", flow="hello"))["params_schema"]["properties"]
        assert (await call(client, "list_workers"))["workers"][0]["slots"] >= 1
        letters = await call(client, "list_dead_letters", flow="failing", limit=5)
        assert failing in {letter["run_id"] for letter in letters["items"]}
        assert (await call(client, "list_dead_letter_groups"))["items"]
        found = (await call(client, "examine_fleet"))["findings"]
        assert {"nats", "workers-api"} <= {finding["check"] for finding in found}
    stack.client.post(f"/runs/{waiting}/cancel")


async def test_long_logs_and_results_come_in_parts_that_say_how_to_read_on(stack: Fleet) -> None:
    name = "\n".join(f"line {number:>4} of a long name" for number in range(2, 1002))
    run_id = submit(stack.client, "hello", name=name)
    wait_ended(stack.client, [run_id])
    async with assistant(stack.url) as client:
        last = await call(client, "read_logs", run_id=run_id, task="choose")
        assert (last["first_line"], last["last_line"], last["total_lines"]) == (801, 1000, 1000)
        part = await call(client, "read_logs", run_id=run_id, task="choose", from_line=2)
        assert part["text"].splitlines()[0] == "line    3 of a long name"
        assert (part["first_line"], part["last_line"]) == (2, 201)
        assert "from_line=202" in part["hint"]
        read = ""
        offset: int | None = 0
        while offset is not None:
            result = await call(client, "read_result", run_id=run_id, offset=offset)
            read, offset = read + result["json_text"], result.get("next_offset")
        assert json.loads(read)["result"] == f"Hello, {name}!"


async def test_with_writes_it_submits_cancels_reruns_and_requeues(stack: Fleet) -> None:
    async with assistant(stack.url, "--allow-writes") as client:
        tools = {tool.name: tool.annotations for tool in (await client.list_tools()).tools}
        assert tools.keys() == READING | WRITING
        assert {name for name, hints in tools.items() if hints and not hints.read_only_hint} == WRITING
        run_id = (await call(client, "submit_run", flow="hello", params={"name": "Ada"}))["run_id"]
        assert ended(stack, run_id) == "COMPLETED"
        again = (await call(client, "rerun_run", run_id=run_id))["run_id"]
        assert stack.client.get(f"/runs/{again}").json()["rerun_of"] == run_id
        waiting = (await call(client, "submit_run", flow="hello", tag="nobody-for-mcp"))["run_id"]
        await call(client, "cancel_run", run_id=waiting, reason="not needed")
        assert ended(stack, waiting) == "CANCELLED"
        failing = submit(stack.client, "failing")
        wait_ended(stack.client, [failing])
        letter_id = letter_of(stack, failing)
        assert (await call(client, "requeue_dead_letters", letter_id=letter_id))["run_id"] == failing
        assert "all" in await refusal(client, "requeue_dead_letters")
        assert "params.nmae" in await refusal(client, "submit_run", flow="hello", params={"nmae": "Ada"})


async def test_it_starts_although_no_fleet_answers_and_says_so_when_asked() -> None:
    async with assistant(f"http://127.0.0.1:{free_port()}") as client:
        assert "ERR-PYOCO-0001" in await refusal(client, "list_flows")


def test_without_the_sdk_it_says_how_to_install_it(tmp_path: Path) -> None:
    (tmp_path / "mcp.py").write_text("raise ModuleNotFoundError(name='mcp')")
    done = subprocess.run(
        [str(COMMAND), "mcp"],
        env={**environment("http://127.0.0.1:9"), "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert "pip install 'pyoco-fleet-client[mcp]'" in done.stderr


@pytest.fixture(autouse=True)
def english(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LC_ALL", "LC_MESSAGES", "LANG"):
        monkeypatch.delenv(name, raising=False)
