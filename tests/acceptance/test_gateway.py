"""Wrong requests are answered with the envelope, and a client can claim no identity."""

import uuid

import httpx
import pytest

from fleet_testkit.api_keys import issue_key
from fleet_testkit.fleet import Fleet
from fleet_testkit.log_lines import log_lines
from fleet_testkit.runs import read, submit, wait_ended
from fleet_testkit.waiting import wait_until
from fleet_testkit.wire import Wire

EVIL = {"X-Pyoco-Tenant-Id": "evil", "X-Pyoco-Api-Key-Id": "evil-key", "X-Pyoco-Scopes": "admin"}


def assert_envelope(answer: httpx.Response, *, status: int, code: str, err_id: str | None = None) -> None:
    body = answer.json()
    assert answer.status_code == status, body
    assert body["ok"] is False
    assert body["error"]["code"] == code
    assert body["error"]["message"] == body["detail"] != ""
    assert body["error"]["meta"]["request_id"] == answer.headers["x-request-id"] != ""
    assert body["error"]["meta"].get("err_id") == err_id
    assert body["error"]["meta"].get("msg_id") == (err_id and err_id.replace("ERR", "MSG"))


@pytest.mark.parametrize(
    ("method", "path", "options", "expected"),
    [
        ("GET", "/nothing", {}, (404, "NOT_FOUND", None)),
        ("GET", f"/runs/{uuid.UUID(int=0)}", {}, (404, "NOT_FOUND", "ERR-PYOCO-0005")),
        ("GET", "/runs/no-uuid", {}, (404, "NOT_FOUND", "ERR-PYOCO-0005")),
        ("DELETE", "/runs", {}, (405, "METHOD_NOT_ALLOWED", None)),
        ("POST", "/static/app.js", {}, (405, "METHOD_NOT_ALLOWED", None)),
        (
            *("POST", "/runs", {"json": {"flow_name": "hello", "params": {"x": "x" * 10_000_000}}}),
            (413, "PAYLOAD_TOO_LARGE", "ERR-PYOCO-0002"),
        ),
        (
            *("POST", "/runs/batch", {"content": b"x" * (16 * 1024 * 1024 + 1)}),
            (413, "PAYLOAD_TOO_LARGE", "ERR-PYOCO-0002"),
        ),
        (
            *("POST", "/runs", {"json": {"flow_name": "hello", "params": {"x": "x" * 300_000}}}),
            (413, "PAYLOAD_TOO_LARGE", "ERR-PYOCO-0002"),
        ),
        ("POST", "/runs", {"content": b"{"}, (422, "VALIDATION_ERROR", "ERR-PYOCO-0002")),
        ("POST", "/runs", {"data": {"flow_name": "hello"}}, (415, "VALIDATION_ERROR", "ERR-PYOCO-0002")),
        (
            *("POST", "/runs", {"content": b'{"flow_name": "hello", "params": {"x": [1e999]}}'}),
            (422, "VALIDATION_ERROR", "ERR-PYOCO-0002"),
        ),
        (
            *("POST", "/runs", {"content": b'{"flow_name": "hello", "params": {"x": ' + b"[" * 100_000}),
            (422, "VALIDATION_ERROR", "ERR-PYOCO-0002"),
        ),
        (
            *("POST", "/runs", {"json": {"flow_name": "hello"}, "headers": {"Idempotency-Key": "a:" + "b" * 9000}}),
            (422, "VALIDATION_ERROR", "ERR-PYOCO-0002"),
        ),
        (
            *("POST", "/runs", {"json": {"flow_name": "hello"}, "headers": {"Idempotency-Key": "a" * 40_000}}),
            (431, "VALIDATION_ERROR", None),
        ),
        ("POST", "/runs/yaml", {"json": {}}, (415, "VALIDATION_ERROR", "ERR-PYOCO-0002")),
        ("GET", "/runs/some-run/nothing", {}, (404, "NOT_FOUND", None)),
        ("PUT", "/runs/some-run/cancel", {}, (405, "METHOD_NOT_ALLOWED", None)),
        ("DELETE", "/dlq/groups", {}, (404, "NOT_FOUND", None)),
        ("POST", "/runs", {"json": {"params": {}}}, (422, "VALIDATION_ERROR", "ERR-PYOCO-0002")),
        (
            *("POST", "/runs", {"json": {"flow_name": "hello", "tag": "a.b"}}),
            (422, "VALIDATION_ERROR", "ERR-PYOCO-0002"),
        ),
        ("GET", "/runs?limit=0", {}, (422, "VALIDATION_ERROR", "ERR-PYOCO-0017")),
        ("GET", "/workers?limit=0", {}, (422, "VALIDATION_ERROR", "ERR-PYOCO-0019")),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_wrong_request_is_answered_with_the_envelope(
    stack: Fleet, method: str, path: str, options: dict, expected: tuple[int, str, str | None]
) -> None:
    status, code, err_id = expected
    if "content" in options:
        options = {**options, "headers": {"Content-Type": "application/json"}}
    assert_envelope(stack.client.request(method, path, **options), status=status, code=code, err_id=err_id)


@pytest.mark.also_composed("logs go to the engine")
def test_a_request_id_is_returned_and_found_in_the_logs_of_gateway_and_service(stack: Fleet) -> None:
    wanted = f"trace-{uuid.uuid4().hex}"
    answer = stack.client.get(f"/runs/{uuid.uuid4()}", headers={"X-Request-Id": wanted})
    assert answer.headers.get_list("x-request-id") == [wanted]
    assert answer.json()["error"]["meta"]["request_id"] == wanted

    def logged_by(part: str) -> bool:
        return [line["meta"]["status_code"] for line in log_lines(stack.log(part), request_id=wanted)] == [404]

    for part in ("gateway", "runs-api"):
        wait_until(lambda part=part: logged_by(part), what=f"the request in the log of {part}")


def test_a_request_id_that_could_do_harm_is_replaced(stack: Fleet) -> None:
    answer = stack.client.get("/runs", headers={"X-Request-Id": 'x"} {"level":"FORGED'})
    assert answer.status_code == httpx.codes.OK
    assert answer.headers["x-request-id"].isalnum()


@pytest.mark.also_composed("identity")
def test_identity_headers_of_a_client_are_ignored(stack: Fleet) -> None:
    answer = stack.client.post("/runs", json={"flow_name": "hello"}, headers=EVIL)
    run_id = answer.json()["run_id"]
    [ended] = wait_ended(stack.client, [run_id])
    assert (ended["tenant_id"], ended["api_key_id"]) == (None, None)
    assert stack.client.get(f"/runs/{run_id}", headers=EVIL).json()["run_id"] == run_id
    assert stack.ledger_rows("SELECT DISTINCT tenant_id FROM runs") == [("anonymous",)]


@pytest.fixture(scope="module")
def keys(guarded: Fleet) -> dict[str, dict[str, str]]:
    """The header with a valid key of each of two tenants."""
    return {tenant: issue_key(guarded, tenant) for tenant in ("red", "blue")}


def test_without_a_valid_key_a_request_is_refused_with_the_envelope(guarded: Fleet) -> None:
    answer = guarded.client.get("/runs")
    assert_envelope(answer, status=401, code="UNAUTHENTICATED", err_id="ERR-PYOCO-0014")
    answer = guarded.client.get("/runs", headers={"X-API-Key": "wrong", **EVIL})
    assert_envelope(answer, status=403, code="FORBIDDEN", err_id="ERR-PYOCO-0015")


def test_without_a_key_no_run_is_accepted(guarded: Fleet) -> None:
    wire = Wire(guarded.nats_url)
    before = wire.queued("default")
    for headers in ({}, EVIL, {"X-API-Key": "wrong"}):
        answer = guarded.client.post("/runs", json={"flow_name": "hello"}, headers=headers)
        assert answer.status_code == (403 if "X-API-Key" in headers else 401)
    assert wire.queued("default") == before


@pytest.mark.also_composed("the dashboard's files are in the image")
def test_health_and_the_dashboard_need_no_key(guarded: Fleet) -> None:
    assert guarded.client.get("/health").json()["status"] == "ok"
    assert guarded.client.get("/").headers["content-type"].startswith("text/html")


@pytest.mark.also_composed("identity")
def test_a_tenant_sees_only_its_own_runs_whatever_it_claims_to_be(
    guarded: Fleet, keys: dict[str, dict[str, str]]
) -> None:
    with httpx.Client(base_url=guarded.url, headers=keys["red"], timeout=30) as red:
        run_id = submit(red, "hello", tag="red-only")
        assert (seen := read(red, run_id))["tenant_id"] == "red"
        assert seen["api_key_id"] == keys["red"]["X-API-Key"].split("_")[1]
        assert run_id in {run["run_id"] for run in red.get("/runs").json()}
    for claim in ({}, {"X-Pyoco-Tenant-Id": "red", "X-Pyoco-Scopes": "admin"}):
        with httpx.Client(base_url=guarded.url, headers={**keys["blue"], **claim}, timeout=30) as blue:
            answer = blue.get(f"/runs/{run_id}")
            assert_envelope(answer, status=404, code="NOT_FOUND", err_id="ERR-PYOCO-0005")
            assert blue.get("/runs").json() == []
