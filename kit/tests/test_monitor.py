"""A process that serves no HTTP otherwise, watched."""

import logging
import socket

import httpx
import pytest

from fleet_kit.telemetry.metrics import new_registry
from fleet_kit.telemetry.monitor import MonitorUnusable, _QuietHandler, monitored
from fleet_testkit.nats_server import free_port
from fleet_testkit.waiting import wait_until


def test_it_answers_health_readiness_and_metrics() -> None:
    missing = {"nats": "not there yet"}
    with (
        monitored("127.0.0.1", 0, new_registry("tested"), lambda: missing) as port,
        httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30) as client,
    ):
        assert client.get("/health").json() == {"status": "degraded", "waiting_for": missing}
        waiting = client.get("/ready")
        assert (waiting.status_code, waiting.json()["waiting_for"]) == (503, missing)
        missing = {}
        assert client.get("/ready").status_code == 200
        metrics = client.get("/metrics")
        assert metrics.headers["content-type"].startswith("text/plain; version=0.0.4")
        assert 'pyoco_build_info{component="tested"' in metrics.text
        assert client.get("/else").status_code == 404
        assert client.post("/ready").status_code == 404


@pytest.mark.parametrize(
    ("bound", "host", "status"),
    [
        *[("127.0.0.1", host, 200) for host in ("localhost:9100", "LOCALHOST", "127.0.0.1:1", "[::1]:9100")],
        *[("127.0.0.1", host, 421) for host in ("evil.example", "evil.example:9100", "127.0.0.2", "[", ":")],
        ("127.0.0.2", "127.0.0.2", 200),
        # As Prometheus asks in compose.
        ("0.0.0.0", "worker:9100", 200),
    ],
)
def test_a_page_reaches_it_under_no_name_of_its_own(bound: str, host: str, status: int) -> None:
    with monitored(bound, 0, new_registry("tested"), dict) as port:
        address = bound if bound != "0.0.0.0" else "127.0.0.1"
        answer = httpx.get(f"http://{address}:{port}/metrics", headers={"Host": host})
    assert answer.status_code == status


def test_at_the_end_the_port_is_closed() -> None:
    with monitored("127.0.0.1", 0, new_registry("tested"), dict) as port:
        pass
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"http://127.0.0.1:{port}/health")


def test_a_port_that_is_taken_is_reported() -> None:
    port = free_port()
    with (
        monitored("127.0.0.1", port, new_registry("tested"), dict),
        pytest.raises(MonitorUnusable, match="PYOCO_MONITOR_PORT"),
        monitored("127.0.0.1", port, new_registry("tested"), dict),
    ):
        pass


def test_a_caller_that_says_nothing_is_no_news(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_QuietHandler, "timeout", 0.05)
    with (
        caplog.at_level(logging.DEBUG, "fleet_kit.telemetry.monitor"),
        monitored("127.0.0.1", 0, new_registry("tested"), dict) as port,
        socket.create_connection(("127.0.0.1", port)),
    ):
        wait_until(lambda: caplog.records, what="a line about it")
    [line] = caplog.records
    assert (line.levelno, line.exc_info and line.exc_info[0]) == (logging.DEBUG, TimeoutError)
    assert capfd.readouterr().err == ""


def test_a_failing_check_is_a_line_and_an_answer(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    def broken() -> dict[str, str]:
        raise RuntimeError("nobody knows")

    with monitored("127.0.0.1", 0, new_registry("tested"), broken) as port:
        assert httpx.get(f"http://127.0.0.1:{port}/ready").status_code == 500
    [line] = caplog.records
    assert (line.levelno, line.exc_info and line.exc_info[0]) == (logging.ERROR, RuntimeError)
    assert capfd.readouterr().err == ""
