"""What a flow returns, for each shape of flow."""

from typing import Any

from pyoco import Flow, task
from pyoco.core.engine import Engine
from pyoco.core.models import RunContext
from pyoco.dsl.syntax import switch

from fleet_worker.runner.recording.recorder import Recorder
from fleet_worker.runner.recording.results import result_of


def result(flow: Flow, **params: Any) -> Any:
    context = RunContext()
    Engine(Recorder([], log_max_bytes=0)).run(flow, params, context)
    return result_of(flow, context.task_records)


@task
def one() -> int:
    return 1


@task
def two() -> int:
    return 2


@task
def three() -> int:
    return 3


def test_a_chain_returns_the_output_of_its_last_task() -> None:
    assert result(Flow("chain") >> one >> two) == 2
    # The same task ends one flow and begins another.
    assert result(Flow("single") >> one) == 1


def test_several_ends_are_returned_by_name() -> None:
    @task
    def root() -> None: ...

    @task
    def left() -> str:
        return "l"

    @task
    def right() -> str:
        return "r"

    assert result(Flow("fork") >> root >> (left & right)) == {"left": "l", "right": "r"}


def test_a_branch_or_a_loop_returns_what_ran_last() -> None:
    flow = Flow("branch") >> one >> switch("$ctx.params.way")["a" >> two, "b" >> three]
    assert (result(flow, way="a"), result(flow, way="b")) == (2, 3)

    counter: list[int] = []

    @task
    def count() -> int:
        counter.append(1)
        return len(counter)

    assert result(Flow("loop") >> count[3]) == 3


def test_a_flow_without_tasks_returns_nothing() -> None:
    assert result_of(Flow("empty"), {}) is None
