"""No service is reachable but through the gateway: its secret is known to nobody else."""

import httpx
import pytest

from fleet_contracts.names import HEADER_FROM_GATEWAY
from fleet_testkit.apps import ANONYMOUS
from fleet_testkit.fleet import Fleet
from fleet_testkit.stack import Stack

PLACES = [
    ("runs-api", "POST", "/runs"),
    ("runs-api", "GET", "/runs"),
    ("runs-api", "GET", "/fleet/metrics"),
    ("runs-api", "GET", "/openapi.json"),
    ("workers-api", "GET", "/workers"),
    ("wheels-api", "GET", "/wheels"),
    ("auth", "GET", "/verify"),
]


@pytest.mark.also_composed("secrets")
@pytest.mark.parametrize(("service", "method", "path"), PLACES)
def test_a_forged_identity_at_the_socket_of_a_service_is_refused(
    stack: Fleet, service: str, method: str, path: str
) -> None:
    forged = {**ANONYMOUS, HEADER_FROM_GATEWAY: "x" * 43}
    with stack.service_client(service, knows_secret=False) as intruder:
        for headers in (ANONYMOUS, forged):
            answer = intruder.request(method, path, headers=headers, json={"flow_name": "hello"})
            assert answer.status_code == httpx.codes.UNAUTHORIZED
            assert answer.json()["detail"] == "The request did not come through the gateway; send it there."
        assert intruder.get("/ready").status_code == httpx.codes.OK


@pytest.mark.also_composed("secrets")
def test_a_client_cannot_learn_the_secret(stack: Fleet) -> None:
    secret = stack.gateway_secret
    answers = [
        stack.client.request(method, path, headers={HEADER_FROM_GATEWAY: "mine"})
        for method in ("GET", "POST", "TRACE", "OPTIONS")
        for path in ("/", "/static/config.js", "/health", "/runs", "/runs/nobody", "/metrics", "/workers", "/nowhere")
    ]
    answered = "".join(f"{answer.headers} {answer.text}" for answer in answers)
    assert secret not in answered
    logs = stack.logs()
    assert all(any(part in name and said for name, said in logs.items()) for part in ("gateway", "runs-api"))
    assert [name for name, said in logs.items() if secret in said] == []


@pytest.mark.embedded_only("files of the data dir; what containers show is in tests/containers")
def test_only_its_owner_can_read_the_secret(stack: Stack) -> None:
    file = stack.data_dir / "credentials" / "gateway.secret"
    assert (file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    assert (stack.data_dir / "gateway" / "pyoco.conf").stat().st_mode & 0o077 == 0
    assert stack.gateway_secret not in (stack.data_dir / "fleet.json").read_text()
