"""A task in a loop has a record of each iteration."""

from pathlib import Path
from typing import Any

from fleet_contracts.status import RunStatus

from .one_runner import OneRun, one_runner


def record(run: OneRun, task: str) -> dict[str, Any]:
    found: dict[str, Any] = (run.done.task_records or {})[task]
    return found


async def test_a_task_in_a_loop_has_a_record_of_each_iteration(tmp_path: Path) -> None:
    async with one_runner(tmp_path) as runner:
        run = await runner.run("visiting", items=["a", {"b": 1}, "x" * 300, "bad", "never"])
        assert run.done.status is RunStatus.FAILED
        visited = record(run, "visit")
        seen = [(one["index"], one["item"], one["state"], one["error"]) for one in visited["iterations"]]
        assert seen == [
            (0, "a", "SUCCEEDED", None),
            (1, {"b": 1}, "SUCCEEDED", None),
            (2, "<str: too large to be shown>", "SUCCEEDED", None),
            (3, "bad", "FAILED", "ValueError: bad item"),
        ]
        assert visited["iteration_count"] == 4
        [first, *_] = visited["iterations"]
        assert first["started_at"] <= first["ended_at"]
        assert first["duration_ms"] >= 0


async def test_of_many_iterations_the_first_and_the_last_are_kept(tmp_path: Path) -> None:
    async with one_runner(tmp_path) as runner:
        run = await runner.run("counting")
        counted = record(run, "count")
        assert counted["iteration_count"] == 1000
        assert [one["index"] for one in counted["iterations"]] == [*range(50), *range(950, 1000)]
        twice = record(await runner.run("looping_twice", items=["a", "b"]), "inner")
        assert [one["loop"] for one in twice["iterations"]][-1] == "foreach:item[1].repeat[1]"
        # A task outside of any loop has none.
        assert "iterations" not in record(await runner.run("chain"), "fetch")
