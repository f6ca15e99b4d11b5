"""workers-api as a process: it starts on a unix socket, stops at a signal, and refuses bad settings."""

from pathlib import Path

from fleet_testkit.apps import ServiceProcess
from fleet_testkit.nats_server import NatsServer


async def test_it_serves_on_a_unix_socket_and_leaves_nothing_behind(nats_server: NatsServer, tmp_path: Path) -> None:
    async with ServiceProcess("fleet_workers_api", tmp_path, PYOCO_NATS_URL=nats_server.url).serving() as client:
        assert (await client.get("/health")).json() == {"status": "ok", "waiting_for": {}}


def test_an_invalid_setting_is_refused_at_start_with_its_name_its_value_and_what_is_allowed(tmp_path: Path) -> None:
    sentence = ServiceProcess("fleet_workers_api", tmp_path, PYOCO_WORKER_DISCONNECT_TIMEOUT_SEC="-3").refusal()
    assert sentence == "PYOCO_WORKER_DISCONNECT_TIMEOUT_SEC='-3' is not allowed: input should be greater than 0"
