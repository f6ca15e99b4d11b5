"""wheels-api as a process: it starts on a unix socket, stops when told, and refuses bad settings."""

from pathlib import Path

from fleet_testkit.apps import ServiceProcess, until_ready
from fleet_testkit.nats_server import NatsServer


async def test_it_serves_on_a_unix_socket_and_leaves_nothing_behind(nats_server: NatsServer, tmp_path: Path) -> None:
    service = ServiceProcess("fleet_wheels_api", tmp_path, PYOCO_NATS_URL=nats_server.url)
    service.start()
    try:
        async with service.client() as client:
            await until_ready(client)
            assert (await client.get("/health")).json() == {"status": "ok", "waiting_for": {}}
        service.terminate()
        assert service.exit_code(within=8) == 0
        assert not service.socket.exists()
    finally:
        service.kill()


def test_an_invalid_setting_is_refused_at_start_with_its_name_its_value_and_what_is_allowed(tmp_path: Path) -> None:
    service = ServiceProcess("fleet_wheels_api", tmp_path, PYOCO_WHEEL_MAX_BYTES="big")
    service.start()
    try:
        assert service.exit_code(within=20) == 1
    finally:
        service.kill()
    told = service.log.read_text()
    assert told.startswith("wheels-api: PYOCO_WHEEL_MAX_BYTES='big' is not allowed: input should be a valid integer")
