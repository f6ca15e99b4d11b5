"""Secrets leave a runner as `***` only."""

from dataclasses import asdict
from pathlib import Path

import orjson
import pytest

from fleet_contracts.status import RunStatus
from fleet_worker.boundary.frames import Ready
from fleet_worker.boundary.masking import Secrets
from fleet_worker.runner.loading.flows import load_flows

from .one_runner import one_runner


@pytest.mark.parametrize("secret", ["hunter2-abcd", "zwei\nZeilen 'ß' \"é\" \\ C:\\x"])
async def test_a_secret_leaves_a_runner_as_three_stars(tmp_path: Path, secret: str) -> None:
    async with one_runner(tmp_path, secrets=[secret, "", "abc", "23456", "COMPLETED"]) as runner:
        run = await runner.run("telling", secret=secret)
        assert (run.done.status, run.done.error) == (RunStatus.FAILED, "ValueError: '***' was refused")
        said = run.said()
        assert said.count("***") == 6
        assert "printed: ***\n******written: ***\n" in run.said(stream="stdout")
        told = (run.done.task_records or {})["tell"]
        assert told["output"]["secret"] == "***"
        assert told["output"]["number"] == "***"
        sent = orjson.dumps([asdict(run.done), *map(asdict, run.progress)]).decode()
        assert secret not in sent
        assert repr(secret)[1:-1] not in sent
        returned = await runner.run("returning", secret=secret)
        assert (returned.done.status, returned.done.result[0]) == (RunStatus.COMPLETED, "***")
        # What is cut is masked before.
        much = (await runner.run("returning_much", secret=secret)).done.task_records or {}
        assert much["give_back_much"]["output"].startswith("x***")
        assert set(much["give_back_much"]["output"].partition("…")[0]) == {"x", "*"}


async def test_without_secrets_nothing_is_masked(tmp_path: Path) -> None:
    async with one_runner(tmp_path) as runner:
        run = await runner.run("returning", secret="hunter2-abcd")
        assert run.done.result == ["hunter2-abcd", ["hunter2", "abcd"]]


def test_of_overlapping_secrets_the_longest_is_masked() -> None:
    secrets = Secrets()
    secrets.set(["pass", "password", "  spaced  ", "    "])
    assert secrets.mask("password, pass, spaced out    ") == "***, ***, *** out    "
    assert secrets.mask_bytes(b"\xff password") == b"\xff ***"


NAMING = """
from typing import Literal
from pyoco import Flow, task

@task
def call(port: Literal[5432, 80] = 5432, key: str = "hunter2", colour: Literal["red", "blue"] = "red"):
    "Calls with hunter2."

flow = Flow("hunter2") >> call
"""


@pytest.mark.usefixtures("own_modules")
def test_a_catalogue_tells_no_secrets_and_keeps_names(tmp_path: Path) -> None:
    (tmp_path / "flows.py").write_text(NAMING)
    (tmp_path / "broken.py").write_text("raise ValueError('hunter2')\n")
    secrets = Secrets()
    secrets.set(["hunter2", "5432"])
    catalogue = load_flows(None, str(tmp_path)).catalogue()
    masked = secrets.mask_frame(Ready([], catalogue=catalogue.model_dump(mode="json")))
    assert isinstance(masked, Ready)
    [offer], [broken] = masked.catalogue["flows"], masked.catalogue["broken"]
    assert (offer["name"], offer["description"], broken["message"]) == ("hunter2", "Calls with ***.", "***")
    assert offer["params_schema"]["properties"] == {
        # Without the values that it admits: a masked one would not admit the secret.
        "port": {"type": "integer", "default": "***"},
        "key": {"type": "string", "default": "***"},
        "colour": {"type": "string", "enum": ["red", "blue"], "default": "red"},
    }


def test_the_numbers_of_the_fleet_itself_are_no_secrets() -> None:
    secrets = Secrets()
    secrets.set(["5432", "SUCCEEDED"])
    own = {"state": "SUCCEEDED", "started_at": 5432.5, "duration_ms": 5432, "error": None}
    iterations = [{**own, "index": 5432, "item": 5432}]
    record = {**own, "output": [5432], "iterations": iterations, "iteration_count": 5432}
    masked = {**record, "output": ["***"], "iterations": [{**iterations[0], "item": "***"}]}
    assert secrets.mask_records({"query": record}) == {"query": masked}
