"""The examples do what the README says: typed params, async tasks, retries, libraries and settings of flows."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

from fleet_testkit.runs import read, submit, wait_ended
from fleet_testkit.stack import Stack
from fleet_testkit.waiting import wait_until

EXAMPLES = Path(__file__).parents[2] / "examples"
SECRET = "correct horse battery"
READS_A_SETTING = """
import os
from pyoco import Flow, task

@task
def shout():
    print("the key is", os.environ["SHOP_KEY"])
    return os.environ["SHOP_KEY"].upper()

flow = Flow("setting") >> shout
"""


class Weather(BaseHTTPRequestHandler):
    """A service that is away for its first requests."""

    away_for = 0

    def do_GET(self) -> None:
        if type(self).away_for > 0:
            type(self).away_for -= 1
            self.send_error(503)
            return
        place = parse_qs(urlsplit(self.path).query)
        body = json.dumps({"degrees": float(place["latitude"][0])}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def weather() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Weather) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        serving.join()


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with Stack(tmp_path_factory.mktemp("examples") / "data", "--flows-dir", str(EXAMPLES)) as stack:
        yield stack


@pytest.fixture(scope="module")
def etl(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    folder = tmp_path_factory.mktemp("etl")
    flows = folder / "flows"
    flows.mkdir()
    for file in (EXAMPLES / "etl").iterdir():
        if file.is_file():
            (flows / file.name).write_bytes(file.read_bytes())
    (flows / "setting.py").write_text(READS_A_SETTING)
    (folder / "flow.env").write_text(f"SHOP_KEY='{SECRET}'\n")
    options = ("--flows-dir", str(flows), "--flow-env", str(folder / "flow.env"))
    with Stack(folder / "data", *options) as stack:
        # The libraries come from a package index, which may take its time.
        wait_until(lambda: "etl" in names(stack), within=120, what="the flow with its libraries")
        yield stack


def names(stack: Stack) -> set[str]:
    return {flow["name"] for flow in stack.client.get("/flows").json()["flows"]}


def logs(stack: Stack, run_id: str) -> str:
    return stack.client.get(f"/runs/{run_id}/logs").text


def test_every_example_is_in_the_catalogue_with_its_params(stack: Stack) -> None:
    assert {"hello", "dag", "long", "failing", "branching", "forecast"} <= names(stack)
    flow = stack.client.get("/flows/forecast").json()
    assert flow["params_schema"]["required"] == ["service"]
    assert flow["params_schema"]["properties"]["unit"]["default"] == "celsius"
    assert [node["name"] for node in flow["graph"]["nodes"]] == ["ask", "convert"]
    assert flow["defaults"]["retry"]["max_attempts"] == 3


def test_async_tasks_get_typed_params_and_are_tried_again(stack: Stack, weather: str) -> None:
    Weather.away_for = 2
    places = [{"name": name, "latitude": 10 * n, "longitude": 0} for n, name in enumerate(["Nara", "Kyoto", "Uji"])]
    run_id = submit(stack.client, "forecast", service=weather, places=places, unit="fahrenheit")
    [run] = wait_ended(stack.client, [run_id])
    assert run["status"] == "COMPLETED", run["error"]
    assert run["result"] == {"Nara": 32.0, "Kyoto": 50.0, "Uji": 68.0}
    assert run["attempt"] == 1
    assert "asking for Uji" in logs(stack, run_id)


def test_a_submit_whose_params_do_not_fit_is_refused_with_the_field_before_anything_is_queued(stack: Stack) -> None:
    before = stack.client.get("/runs", params={"flow": "forecast"}).json()
    wrong = {"flow_name": "forecast", "params": {"service": 1, "unti": "kelvin"}}
    answer = stack.client.post("/runs", json=wrong)
    assert answer.status_code == httpx.codes.UNPROCESSABLE_ENTITY
    faults = {fault["field"]: fault["reason"] for fault in answer.json()["error"]["meta"]["fields"]}
    assert set(faults) == {"params.service", "params.unti"}
    assert "unit" in faults["params.unti"]
    assert stack.client.get("/runs", params={"flow": "forecast"}).json() == before
    # The worker has the last word if the caller asks for it.
    unchecked = stack.client.post("/runs", json={**wrong, "check_params": False})
    [run] = wait_ended(stack.client, [unchecked.json()["run_id"]])
    assert run["status"] == "FAILED"
    assert "did you mean 'unit'?" in run["error"]
    assert run["tasks"] == {}


def test_a_loop_shows_each_iteration(stack: Stack) -> None:
    [run] = wait_ended(stack.client, [submit(stack.client, "branching", items=["a cup", "a spoon", "a pot"])])
    record = run["task_records"]["pack"]
    assert record["iteration_count"] == 3
    assert [(one["index"], one["item"], one["state"]) for one in record["iterations"]] == [
        (0, "a cup", "SUCCEEDED"),
        (1, "a spoon", "SUCCEEDED"),
        (2, "a pot", "SUCCEEDED"),
    ]


def test_a_flow_gets_the_libraries_of_its_folder_and_what_it_says_is_kept(etl: Stack) -> None:
    run_id = submit(etl.client, "etl", since="2026-03-03")
    [run] = wait_ended(etl.client, [run_id])
    assert run["status"] == "COMPLETED", run["error"]
    # Decimals as text: no digit is lost.
    assert run["result"] == {"Aoi": "79.90", "Ben": "240.25", "Chika": "18.75"}
    said = logs(etl, run_id)
    assert "customer" in said
    assert "order 1004 is left out: its amount is 'not paid'" in said
    events = etl.client.get(f"/runs/{run_id}/events").json()["events"]
    assert [event["level"] for event in events if event.get("level")] == ["WARNING"]


def test_a_setting_of_flows_reaches_them_and_is_masked_in_all_that_is_shown(etl: Stack) -> None:
    run_id = submit(etl.client, "setting")
    [run] = wait_ended(etl.client, [run_id])
    assert run["result"] == SECRET.upper()
    assert "the key is ***" in logs(etl, run_id)
    assert SECRET not in json.dumps(read(etl.client, run_id))
    assert SECRET not in "".join(file.read_text() for file in (etl.data_dir / "logs").glob("*.log"))
