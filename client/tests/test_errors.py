"""What an exception says."""

import pickle
import subprocess
import sys

import pytest

import pyoco_fleet
from pyoco_fleet import FlowFailed, NotFound, Unreachable


@pytest.mark.parametrize(
    "error",
    [
        NotFound("no such run", err_id="ERR-PYOCO-0005", request_id="r1", status=404),
        Unreachable("nothing answers", sent=False),
        FlowFailed("it failed", run_id="r", task="load", traceback="Traceback"),
    ],
)
def test_an_error_survives_the_way_between_processes(error: Exception) -> None:
    copy = pickle.loads(pickle.dumps(error))

    assert (type(copy), str(copy), vars(copy)) == (type(error), str(error), vars(error))


def test_every_exported_name_is_there_and_none_is_loaded_before_it_is_used() -> None:
    code = "import sys, pyoco_fleet; assert not {'httpx2', 'pydantic', 'asyncio'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert all(getattr(pyoco_fleet, name).__name__ == name for name in pyoco_fleet.__all__)
    assert set(pyoco_fleet.__all__) <= set(dir(pyoco_fleet))
