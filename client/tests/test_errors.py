"""What an exception says."""

import pickle

import pytest

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
