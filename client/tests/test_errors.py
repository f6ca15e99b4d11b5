"""What an exception says."""

import pickle
import subprocess
import sys

import httpx
import pytest

import pyoco_fleet
from pyoco_fleet import FlowFailed, NotFound, Unreachable
from pyoco_fleet.calls import Answer, error_of
from pyoco_fleet.peer_errors import as_scripts_expect


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


def test_with_httpx_imported_an_error_is_one_of_httpx_as_well_until_it_is_pickled() -> None:
    said = Answer(404, {"content-type": "application/json"}, b'{"error": {"message": "no such run"}}', "GET /x")
    error = as_scripts_expect(error_of(said), "GET", "http://x/y", said)
    assert isinstance(error, NotFound)
    assert isinstance(error, httpx.HTTPStatusError)
    assert error.response.json() == {"error": {"message": "no such run"}}
    lost = as_scripts_expect(Unreachable("gone"), "GET", "http://x/y", "ReadTimeout")
    assert isinstance(lost, httpx.ReadTimeout)
    assert lost.request.url == "http://x/y"
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), copy.status, str(copy)) == (NotFound, 404, "no such run")


def test_every_exported_name_is_there_and_none_is_loaded_before_it_is_used() -> None:
    code = "import sys, pyoco_fleet; assert not {'httpx2', 'pydantic', 'asyncio'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert all(getattr(pyoco_fleet, name).__name__ == name for name in pyoco_fleet.__all__)
    assert set(pyoco_fleet.__all__) <= set(dir(pyoco_fleet))
