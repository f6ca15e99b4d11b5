"""The Python client with a real fleet, through the gateway."""

import asyncio
import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import httpx2
import pytest
from pydantic import BaseModel

from fleet_testkit.fleet import Fleet as RealFleet
from fleet_testkit.fleet import MakesFleets
from fleet_testkit.waiting import wait_until
from fleet_testkit.wheels import build_wheel
from pyoco_fleet import (
    AsyncFleet,
    BadRequest,
    Fleet,
    FlowFailed,
    Forbidden,
    NotAuthenticated,
    NotFound,
    ResultTooLarge,
    RunCancelled,
    WaitTimeout,
    params_of,
    transport,
)


@params_of("hello")
class Greeting(BaseModel):
    name: str


@pytest.fixture
def fleet(stack: RealFleet) -> Iterator[Fleet]:
    with Fleet(stack.url) as fleet:
        yield fleet


def test_a_submitted_run_gives_its_result(fleet: Fleet) -> None:
    run = fleet.submit("hello", name="Ada", tags=["of-the-client"], retry=3)

    assert run.result(timeout=60) == "Hello, Ada!"

    assert run.status == "COMPLETED"
    assert run.refresh().tasks()["greet"].output == "Hello, Ada!"
    assert "Hello, Ada!" in run.logs()
    assert [line.text for line in run.follow()] == ["greeting Ada\n", "Hello, Ada!\n"]
    assert [attempt.outcome for attempt in run.attempts()] == ["completed"]
    assert [state.status for state in run.watch()] == []
    assert run.state.tags == ["of-the-client"]
    assert run.rerun().result(timeout=60) == "Hello, Ada!"


def test_typed_params_name_their_flow(fleet: Fleet) -> None:
    assert fleet.submit(Greeting(name="Grace")).result(timeout=60) == "Hello, Grace!"
    assert fleet.map(Greeting, [Greeting(name="A"), {"name": "B"}]).results(timeout=60) == ["Hello, A!", "Hello, B!"]


def test_a_failed_flow_raises_with_its_task_error_and_traceback(fleet: Fleet) -> None:
    run = fleet.submit("failing", message="no disk")
    with pytest.raises(FlowFailed, match=r"failing failed in the task explode: ValueError: no disk") as caught:
        run.result(timeout=60)
    error = caught.value
    assert (error.task, error.error, error.reason) == ("explode", "ValueError: no disk", "execution_error")
    assert "raise ValueError(message)" in error.traceback
    assert error.run["tasks"]["prepare"] == "SUCCEEDED"
    assert "The task explode failed: ValueError: no disk" in str(run.why())


def test_a_run_that_waits_for_a_worker_says_why(fleet: Fleet) -> None:
    run = fleet.submit("hello", tag="nobody-serves-this")
    assert "no live worker serves tag nobody-serves-this" in str(run.why())
    begun = time.monotonic()
    with pytest.raises(WaitTimeout, match=f"the run {run.id} has not ended within 0.3 s"):
        run.result(timeout=0.3)
    assert time.monotonic() - begun < 10
    run.cancel("changed my mind", wait=True)
    with pytest.raises(RunCancelled):
        run.result()


def test_those_who_wait_keep_nobody_from_cancelling(stack: RealFleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "_STREAMS", httpx2.Limits(max_connections=1))
    with Fleet(stack.url) as fleet, ThreadPoolExecutor() as threads:
        run = fleet.submit("hello", tag="nobody-serves-this")
        first = threads.submit(run.wait, 60)
        # One of the two has the only connection for streams, the other one waits for it, no longer than it said.
        with pytest.raises(WaitTimeout):
            fleet.run(run.id).wait(timeout=0.3)
        run.cancel()
        assert first.result(timeout=60).status == "CANCELLED"


def test_a_large_result_is_whole_or_an_error(fleet: Fleet) -> None:
    text = "x" * 60_000
    assert fleet.submit("hello", name=text).result(timeout=60) == f"Hello, {text}!"
    # Two outputs, a result and the params.
    text = "x" * 200_000
    with pytest.raises(ResultTooLarge, match="let the flow return less"):
        fleet.submit("hello", name=text).result(timeout=60)


def test_a_map_gives_each_run_as_it_completes_and_all_results_in_order(fleet: Fleet) -> None:
    runs = fleet.map("hello", ({"name": str(n)} for n in range(1100)), tags=["m1"])
    assert len(set(runs.ids)) == 1100

    seen = {run.id: run.result() for run in runs.as_completed(timeout=120)}

    assert [seen[run_id] for run_id in runs.ids] == [f"Hello, {n}!" for n in range(1100)]
    assert runs.counts == {"COMPLETED": 1100}
    assert runs.results() == [f"Hello, {n}!" for n in range(1100)]


def test_a_group_tells_failures_in_their_places(fleet: Fleet) -> None:
    group = fleet.group([fleet.submit("failing"), fleet.submit("hello", name="Ada")])
    failure, greeting = group.results(timeout=60, return_exceptions=True)
    assert isinstance(failure, FlowFailed)
    assert greeting == "Hello, Ada!"
    with pytest.raises(FlowFailed):
        group.results()


def test_runs_that_do_not_exist_are_not_found(fleet: Fleet) -> None:
    nobody = "01a1e30e-8409-706b-988d-208f9bf2e7f6"
    with pytest.raises(NotFound, match="no such run") as caught:
        fleet.run(nobody).result(timeout=10)
    assert caught.value.err_id == "ERR-PYOCO-0005"
    [missing, greeting] = fleet.group([nobody, fleet.submit("hello", name="Ada")]).results(60, return_exceptions=True)
    assert isinstance(missing, NotFound)
    assert greeting == "Hello, Ada!"


def test_a_map_with_a_bad_item_submits_nothing_and_says_which(fleet: Fleet) -> None:
    with pytest.raises(BadRequest, match=r"runs\.1"):
        fleet.map("hello", [{"name": "a"}, {"name": "b"}], tags=["x" * 65])
    with pytest.raises(BadRequest, match="cannot be written as JSON"):
        fleet.submit("hello", name=object())


def test_a_workflow_file_is_submitted(fleet: Fleet, flows_dir: Path) -> None:
    file = flows_dir.parents[1] / "examples" / "flow.yaml"
    run = fleet.submit_yaml(str(file), flow_name="of-a-file", retry=2, timeout_sec=timedelta(minutes=1))
    run.result(timeout=60)
    assert run.refresh().state.flow_name == "of-a-file"
    assert run.state.retry["max_attempts"] == 2


def test_lists_flows_workers_and_dead_letters_are_objects(fleet: Fleet) -> None:
    failed = fleet.submit("failing", tags=["letters"])
    failed.wait(timeout=60)
    wait_until(
        lambda: (
            [run.id for run in fleet.runs(tags="letters")] == [failed.id]
            and any(letter.run_id == failed.id for letter in fleet.dead_letters.list(run_id=failed.id))
        ),
        what="the failed run and its letter listed",
    )
    assert "hello" in {flow.name for flow in fleet.flows()}
    assert fleet.flow("hello").params_schema["properties"]["name"]
    [worker] = fleet.workers()
    assert worker.tags == ["default"]
    assert "failing" in {group.flow_name for group in fleet.dead_letters.groups()}
    assert fleet.dead_letters.requeue(run_id=failed.id, rate=100).requeued == 1
    fleet.group([failed]).wait(timeout=60)
    assert failed.refresh().state.reopened == 1
    assert fleet.dead_letters.delete(run_id=failed.id, state="all") >= 1
    assert len(list(fleet.runs(limit=3))) == 3


def test_wheels_are_uploaded_downloaded_and_deleted(fleet: Fleet, tmp_path: Path) -> None:
    file = build_wheel(tmp_path, "of_the_client", "1.0")
    wheel = fleet.wheels.upload(file, tags=["nobody"])
    assert wheel.tags == ["nobody"]
    assert wheel.name in {each.name for each in fleet.wheels}
    (tmp_path / "copy").mkdir()
    assert fleet.wheels.download(wheel.name, tmp_path / "copy").read_bytes() == file.read_bytes()
    fleet.wheels.delete(wheel.name)
    assert [event.action for event in fleet.wheels.history(wheel_name=wheel.name)] == ["delete", "upload"]


def test_the_asynchronous_fleet_does_the_same(stack: RealFleet) -> None:
    async def main() -> None:
        async with AsyncFleet(stack.url) as fleet:
            run = await fleet.submit("hello", name="Ada")
            assert await run.result(timeout=60) == "Hello, Ada!"
            assert "Hello, Ada!" in await run.logs()
            assert [line.text async for line in run.follow()] == ["greeting Ada\n", "Hello, Ada!\n"]
            again = await run.rerun()
            assert [state.status async for state in again.watch()][-1] == "COMPLETED"
            runs = await fleet.map("hello", [{"name": str(n)} for n in range(20)])
            assert {await each.result() async for each in runs.as_completed(60)} == {
                f"Hello, {n}!" for n in range(20)
            }
            assert await runs.results() == [f"Hello, {n}!" for n in range(20)]
            failed = await fleet.submit("failing", message="no disk")
            with pytest.raises(FlowFailed, match="no disk"):
                await failed.result(timeout=60)
            assert "failed" in str(await failed.why())
            waiting = await fleet.submit("hello", tag="nobody-serves-this")
            with pytest.raises(WaitTimeout):
                await waiting.result(timeout=0.3)
            await waiting.cancel(wait=True)
            assert waiting.state.status == "CANCELLED"
            assert [each.id async for each in fleet.runs(limit=1)]
            assert await fleet.flows()
            assert [letter.id async for letter in fleet.dead_letters.list(limit=1)]
            assert "pyoco_" in await fleet.metrics()

    asyncio.run(main())


def test_keys_and_scopes_are_understood(guarded: RealFleet, monkeypatch: pytest.MonkeyPatch) -> None:
    issued = guarded.admin("api-key", "create", "--tenant", "client", "--json")
    key = json.loads(issued.stdout)["api_key"]
    with Fleet(guarded.url) as nobody, pytest.raises(NotAuthenticated) as caught:
        nobody.submit("hello")
    assert caught.value.err_id == "ERR-PYOCO-0014"
    monkeypatch.setenv("PYOCO_API_KEY", key)
    monkeypatch.setenv("PYOCO_SERVER", guarded.url)
    with Fleet() as fleet:
        assert fleet.submit("hello").status == "PENDING"
        with pytest.raises(Forbidden, match="scope"):
            fleet.workers()
    with Fleet(api_key="pyk_wrong") as wrong, pytest.raises(Forbidden):
        wrong.submit("hello")


@pytest.mark.embedded_only("kills its gateway")
def test_a_wait_survives_the_end_of_the_gateway(new_fleet: MakesFleets, tmp_path: Path) -> None:
    with new_fleet(tmp_path) as real, Fleet(real.url) as fleet:
        group = fleet.map("hello", [{"name": "Ada"}] * 3, delay_sec=2)
        completed = group.as_completed(timeout=60)
        with ThreadPoolExecutor(1) as pool:
            results = pool.submit(lambda: [run.result() for run in completed])
            wait_until(lambda: fleet.metrics().count("pyoco_"), what="an answer while the group is waited for")
            real.processes()["gateway"].kill()
            assert fleet.submit("hello", name="Grace").result(timeout=60) == "Hello, Grace!"
            assert results.result() == ["Hello, Ada!"] * 3
