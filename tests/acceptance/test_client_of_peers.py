"""A script that was written for pyoco-server's own client runs with another import."""

import json
import subprocess
import sys
from pathlib import Path

from fleet_testkit.fleet import Fleet
from fleet_testkit.wheels import build_wheel

THEIRS = "from pyoco_server.http_client import PyocoHttpClient"
OURS = "from pyoco_fleet import PyocoHttpClient"

# Every method of their client, and the errors as they are caught there.
SCRIPT = f"""\
import json, sys
from pathlib import Path
import httpx
{THEIRS}

url, nowhere, wheel, workflow = sys.argv[1:]
client = PyocoHttpClient(url + "/", api_key=None, api_key_header="X-API-Key")
seen = {{}}
run_id = client.submit_run("hello", {{"name": "Ada"}}, tag="default", tags=["peer-script"])["run_id"]
events = list(client.watch_run(run_id, include_records=True, since=0.0, timeout_sec=60))
seen["events"] = sorted({{event["event"] for event in events}})
seen["ended"] = events[-1]["data"]["snapshot"]["status"]
seen["status"] = client.get_run(run_id)["status"]
seen["output"] = client.get_run_with_records(run_id)["task_records"]["greet"]["output"]
seen["tasks"] = client.get_tasks(run_id)["tasks"]
yaml_id = client.submit_run_yaml(Path(workflow).read_text(), flow_name="of-yaml", tag="default")["run_id"]
list(client.watch_run(yaml_id))
seen["listed"] = len(client.list_runs(flow="hello", tag="default", full=True, limit=1))
page = client.list_runs_vnext(flow="hello", limit=1, cursor="", updated_after=None, workflow_yaml_sha256=None)
seen["page"] = [len(page["items"]), sorted(page)[:2]]
waiting = client.submit_run("hello", tag="nobody")["run_id"]
seen["cancelled"] = client.cancel_run(waiting, wait=True, timeout_sec=20)["status"]
worker = client.get_workers(scope="active", state=None, include_hidden=True, limit=5)[0]["worker_id"]
seen["hidden"] = [client.patch_worker_hidden(worker, hidden=on)["hidden"] for on in (True, False)]
data = Path(wheel).read_bytes()
name = client.upload_wheel(filename=Path(wheel).name, data=data, replace=False, tags=["nobody"])["name"]
seen["wheels"] = name in [wheel["name"] for wheel in client.list_wheels()]
seen["deleted"] = client.delete_wheel(name)["deleted"]
seen["history"] = [event["action"] for event in client.list_wheel_history(limit=2, wheel_name=name, action=None)]
seen["metrics"] = "pyoco_" in client.get_metrics()
try:
    client.get_run("01a1e30e-8409-706b-988d-208f9bf2e7f6")
except httpx.HTTPStatusError as error:
    seen["error"] = [error.response.status_code, error.response.json()["error"]["code"], error.request.method]
try:
    client.submit_run("hello", tag="not allowed")
except httpx.HTTPError as error:
    seen["refused"] = error.response.status_code
other = PyocoHttpClient(nowhere)
try:
    other.get_workers()
except httpx.ConnectError as error:
    seen["nobody"] = str(error.request.url).endswith("/workers")
client.close()
print(json.dumps(seen))
"""

SEEN = {
    "events": ["snapshot"],
    "ended": "COMPLETED",
    "status": "COMPLETED",
    "output": "Hello, Ada!",
    "tasks": {"choose": "SUCCEEDED", "greet": "SUCCEEDED"},
    "listed": 1,
    "page": [1, ["items", "next_cursor"]],
    "cancelled": "CANCELLED",
    "hidden": [True, False],
    "wheels": True,
    "deleted": True,
    "history": ["delete", "upload"],
    "metrics": True,
    "error": [404, "NOT_FOUND", "GET"],
    "refused": 422,
    "nobody": True,
}


def test_a_script_for_the_client_of_pyoco_server_runs_with_another_import(stack: Fleet, tmp_path: Path) -> None:
    wheel = build_wheel(tmp_path, "of_a_peer_script")
    workflow = Path(__file__).parents[2] / "examples" / "flow.yaml"
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.replace(THEIRS, OURS))
    done = subprocess.run(
        [sys.executable, script, stack.url, "http://127.0.0.1:9", wheel, workflow],
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == SEEN
