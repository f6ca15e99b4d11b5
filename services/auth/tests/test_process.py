"""auth as a process: it starts on a unix socket, stops at a signal, and refuses bad settings."""

from pathlib import Path

from fleet_testkit.apps import ServiceProcess
from fleet_testkit.nats_server import NatsServer


async def test_it_serves_on_a_unix_socket_and_leaves_nothing_behind(nats_server: NatsServer, tmp_path: Path) -> None:
    async with ServiceProcess("fleet_auth", tmp_path, PYOCO_NATS_URL=nats_server.url).serving() as client:
        assert (await client.get("/health")).json() == {"status": "ok", "waiting_for": {}}


def test_an_invalid_setting_is_refused_at_start_with_its_name_its_value_and_what_is_allowed(tmp_path: Path) -> None:
    sentence = ServiceProcess(
        "fleet_auth", tmp_path, PYOCO_HTTP_AUTH_MODE="maybe", PYOCO_AUTH_PEPPER="hush"
    ).refusal()
    assert sentence == "PYOCO_HTTP_AUTH_MODE='maybe' is not allowed: input should be 'none' or 'api_key'"


async def test_the_pepper_is_never_logged(nats_server: NatsServer, tmp_path: Path) -> None:
    service = ServiceProcess(
        "fleet_auth",
        tmp_path,
        PYOCO_NATS_URL=nats_server.url,
        PYOCO_HTTP_AUTH_MODE="api_key",
        PYOCO_AUTH_PEPPER="hush-hush",
        PYOCO_LOG_LEVEL="DEBUG",
    )
    async with service.serving() as client:
        assert (await client.get("/verify", headers={"X-API-Key": "my-own-key"})).status_code == 403
    log = service.log.read_text()
    assert "/verify" in log
    assert "hush-hush" not in log
    assert "my-own-key" not in log
