"""Every event of the log contract is logged by some process, and what callers entrust to the fleet by none.

That each line of each stack keeps the schema is checked whenever a stack is stopped (fleet_testkit.stack).
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from fleet_contracts.log_events import REQUIRED_META, SERVICE_HTTP, SERVICE_WORKER
from fleet_testkit.api_keys import issue_key
from fleet_testkit.log_check import CANARY, REFUSED_ON_PURPOSE, check_refusals, fault_of
from fleet_testkit.log_lines import log_lines
from fleet_testkit.runs import submit, wait_ended
from fleet_testkit.stack import Stack
from fleet_testkit.waiting import wait_until
from fleet_testkit.wheels import build_wheel, upload_of

pytestmark = pytest.mark.long

# Not even at DEBUG.
SECRET = f"secret-{CANARY}"


@pytest.fixture(scope="module")
def talkative(tmp_path_factory: pytest.TempPathFactory, flows_dir: Path) -> Iterator[Stack]:
    """A stack that logs all it can, wants keys, follows the wheel registry and hears of its runs often."""
    env = {
        "PYOCO_LOG_LEVEL": "DEBUG",
        "PYOCO_ACK_PROGRESS_INTERVAL_SEC": "0.2",
        "PYOCO_FLOW_WAIT_SEC": "0.5",
        "PYOCO_WHEEL_SYNC_ENABLED": "1",
        "PYOCO_AUTH_PEPPER": SECRET,
        "PYOCO_CURSOR_SECRET": SECRET,
        "MY_SETTING": "mine",
    }
    folder = tmp_path_factory.mktemp("talkative") / "data"
    with Stack(folder, "--auth", "api_key", "--flows-dir", str(flows_dir), env=env) as stack:
        yield stack


def every_log(stack: Stack) -> str:
    return "".join(log.read_text(errors="replace") for log in (stack.data_dir / "logs").glob("*.log"))


def test_a_canary_is_in_debug_lines_and_in_what_a_flow_raised_and_a_secret_in_none(
    talkative: Stack, marks: Path, tmp_path: Path
) -> None:
    client = talkative.client
    client.headers.update(issue_key(talkative, "acme"))

    failed, done = submit(client, "indiscreet", text=CANARY), submit(client, "marked", marks=str(marks), label=CANARY)
    batch = [{"flow_name": "indiscreet", "params": {"text": CANARY}, "retry": {"max_attempts": 2}}]
    [again] = client.post("/runs/batch", json={"runs": batch}).json()["runs"]
    ended = wait_ended(client, [failed, done, again["run_id"]], within=60)
    assert [run["status"] for run in ended] == ["FAILED", "COMPLETED", "FAILED"]
    assert CANARY in ended[0]["error"]

    letters = wait_until(lambda: client.get("/dlq").json()["items"], what="the dead letters")
    assert client.post(f"/dlq/{letters[0]['id']}/requeue").is_success
    # Refused in all the ways that quote what was sent.
    key = {"Idempotency-Key": f"{CANARY}:1:1760000000250"}
    accepted = {"flow_name": "marked", "params": {"marks": str(marks), "label": CANARY}}
    assert client.post("/runs", json=accepted, headers=key).is_success
    for params in ({"marks": str(marks), CANARY: CANARY}, {"marks": str(marks), "seconds": CANARY}):
        assert client.post("/runs", json={"flow_name": "marked", "params": params}).status_code == 422
    assert client.post("/runs", json={"flow_name": "marked", "params": {}}, headers=key).status_code == 409
    for body in (f'{{"{CANARY}', json.dumps({"flow_name": CANARY * 50, "params": CANARY, "tag": CANARY + "!"})):
        assert client.post("/runs", content=body, headers={"Content-Type": "application/json"}).status_code == 422
    for yaml in (f"flow: {CANARY}: [", f"flow: {{graph: '{CANARY}'}}\ntasks: {{it: {{callable: '{CANARY}:x'}}}}\n"):
        form = {"workflow": ("flow.yaml", yaml.encode())}
        assert client.post("/runs/yaml", files=form, data={"flow_name": "yaml"}).status_code == 422
    assert client.get("/runs", params={"cursor": CANARY, "flow": CANARY}).status_code == 422
    wheel = build_wheel(tmp_path, "shop", modules={"shop.py": f"# {CANARY}\n"})
    assert client.post("/wheels", files=upload_of(wheel), data={"tags": f"{CANARY}!"}).status_code == 422
    assert client.post("/wheels", files={"wheel": ("x-1.0-py3-none-any.whl", CANARY.encode())}).status_code == 422
    # With keys that open nothing, in the header and where they do not belong.
    for wrong in (SECRET, f"pyoco_0123456789abcdef_{SECRET}{'x' * 32}"):
        assert client.get("/runs", headers={"X-API-Key": wrong}).status_code == 403
        assert client.get(f"/runs?api_key={wrong}", headers={"X-API-Key": wrong}).status_code == 403

    assert talkative.check_logs() > 100
    # It could have failed: at DEBUG the canary is there. Above it, it is where the flow's exception is logged.
    # There may be a second one: this run's letter may be the one that was requeued.
    line, *_ = log_lines(talkative.log("worker-1"), level="ERROR", run_id=failed)
    assert (line["exc_type"], line["exc_message"]) == ("ValueError", f"no use: {CANARY}")
    assert f"KeyError: '{CANARY}'" in line["exc_traceback"]
    assert f"ValueError: no use: {CANARY}" in line["exc_traceback"]
    assert CANARY not in line["message"]


def test_neither_flows_nor_their_worker_see_a_secret_of_the_other_parts(talkative: Stack) -> None:
    client = talkative.client
    client.headers.update(issue_key(talkative, "curious"))
    [run] = wait_ended(client, [submit(client, "curious")], within=60)
    seen = run["result"]
    assert SECRET not in str(seen)
    assert {name for name in seen["runner"] if name.startswith("PYOCO_")} == {"PYOCO_FLEET_PART"}
    assert seen["runner"]["MY_SETTING"] == "mine"
    # Where it is not root it can read that of no other part.
    assert not seen["has_pepper"]
    if os.geteuid() == 0:
        assert seen["worker"]["MY_SETTING"] == "mine"
        # It has its own, so this is its environment.
        assert seen["worker"]["PYOCO_NATS_NKEY_FILE"].endswith(".nk")
    else:
        assert seen["worker"] == {}


def test_every_event_of_the_contract_is_logged_with_its_meta(talkative: Stack, tmp_path: Path) -> None:
    client = talkative.client
    client.headers.update(issue_key(talkative, "events"))
    wheel = build_wheel(tmp_path, "stall", modules={"stall.py": "VERSION = 1\n"})
    assert client.post("/wheels", files=upload_of(wheel)).is_success
    run_id = submit(client, "marked", marks=str(tmp_path / "marks"), label="slow", seconds=1.0)
    lost = submit(client, "no-such-flow")
    wait_ended(client, [run_id, lost], within=60)

    def missing() -> set[str]:
        logged = {json.loads(line)["event"] for line in every_log(talkative).splitlines() if line.endswith("}")}
        return {event.value for event in REQUIRED_META} - logged

    wait_until(lambda: not missing(), within=30, what=f"every event; still missing {missing()}")
    job = log_lines(talkative.log("worker-1"), event="worker_job", run_id=run_id)
    assert [(line["status"], line["meta"]["queue"]) for line in job] == [
        ("in_progress", "default"),
        ("completed", "default"),
    ]
    assert job[1]["duration_ms"] >= 1000
    [failed] = log_lines(talkative.log("worker-1"), event="worker_job", run_id=lost, status="failed")
    assert (failed["meta"]["error_code"], failed["meta"]["resource"]) == ("NOT_FOUND", "flow:no-such-flow")


def test_one_request_id_leads_from_the_gateway_to_the_worker(talkative: Stack, tmp_path: Path) -> None:
    client = talkative.client
    headers = {**issue_key(talkative, "followed"), "X-Request-Id": "follow-me-1"}
    body = {"flow_name": "marked", "params": {"marks": str(tmp_path / "marks"), "label": "x"}}
    run_id = client.post("/runs", json=body, headers=headers).json()["run_id"]
    client.headers.update(headers)
    wait_ended(client, [run_id], within=60)
    for part in ("gateway", "runs-api", "worker-1"):
        wait_until(
            lambda part=part: log_lines(talkative.log(part), request_id="follow-me-1"), what=f"its line of {part}"
        )
    [ended] = log_lines(talkative.log("worker-1"), event="worker_job", run_id=run_id, status="completed")
    assert ended["request_id"] == "follow-me-1"


def test_a_line_that_breaks_the_contract_is_noticed(talkative: Stack) -> None:
    good = talkative.log("auth").splitlines()[0]
    assert fault_of(good) is None
    assert fault_of("Traceback (most recent call last):") is not None
    assert fault_of(good.replace('"INFO"', '"LOUD"')) is not None

    def line_with(text: str) -> str:
        return json.dumps({**json.loads(good), "meta": {"a": text}})

    assert fault_of(line_with("nothing")) is None
    assert fault_of(line_with(CANARY)) is not None
    raised = json.dumps({**json.loads(good), "exc_message": CANARY, "run_id": "r1"})
    assert fault_of(raised) is not None
    assert fault_of(raised.replace(SERVICE_HTTP, SERVICE_WORKER)) is None
    assert fault_of(line_with(SECRET)) is not None
    for refusal in ("permissions violation for subscription to x", "cid:7 - Publish Violation - Subject x"):
        assert fault_of(line_with(refusal)) is not None
        assert fault_of(line_with(f"{REFUSED_ON_PURPOSE}: {refusal}")) is None
        # As nats-server in a container says it.
        with pytest.raises(AssertionError, match="nats-1 has refused"):
            check_refusals(["[1] [INF] ready", f"[1] [ERR] {refusal}"], of="nats-1")
        check_refusals([f"[1] [ERR] {REFUSED_ON_PURPOSE}: {refusal}"], of="nats-1")
