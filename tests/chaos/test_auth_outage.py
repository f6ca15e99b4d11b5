"""NATS away behind a closed door: known keys open for a while, then nobody gets in until it is back."""

import json
import time
from pathlib import Path

import pytest

from fleet_testkit.nats_server import NatsServer
from fleet_testkit.programs import run_program
from fleet_testkit.stack import Stack
from fleet_testkit.waiting import wait_until

STALE_SECONDS = 4.0


@pytest.mark.own_nats
def test_known_keys_are_let_in_for_a_while_and_then_none(nats_server: NatsServer, tmp_path: Path) -> None:
    env = {"PYOCO_AUTH_STALE_SEC": str(STALE_SECONDS), "PYOCO_WORKERS": "0"}
    options = ("--nats-url", nats_server.url, "--auth", "api_key")
    with Stack(tmp_path / "data", *options, with_nats=False, with_worker=False, env=env) as stack:
        key = {"X-API-Key": _issue(nats_server.url, stack)}
        other = {"X-API-Key": f"pyoco_0123456789abcdef_{'x' * 43}"}

        def ask(header: dict[str, str]) -> tuple[int, str | None]:
            # A list comes from the ledger: it is auth alone that needs NATS for it.
            answer = stack.client.get("/runs", headers=header)
            return answer.status_code, None if answer.is_success else answer.json()["error"]["meta"].get("err_id")

        wait_until(lambda: ask(key) == (200, None), what="the key known")
        assert ask(other) == (403, "ERR-PYOCO-0015")
        nats_server.stop()
        stopped_at = time.monotonic()
        wait_until(lambda: ask(other) == (503, "ERR-PYOCO-0003"), what="an unknown key not being judged")
        assert ask(key) == (200, None)
        assert ask({}) == (401, "ERR-PYOCO-0014")
        wait_until(lambda: ask(key) == (503, "ERR-PYOCO-0003"), what="the known key being trusted no longer")
        # From the last look at the bucket, a second before at most; and the gateway remembers for two.
        assert STALE_SECONDS - 1.5 < time.monotonic() - stopped_at < STALE_SECONDS + 15
        assert ask({}) == (401, "ERR-PYOCO-0014")
        nats_server.start()
        wait_until(lambda: ask(key) == (200, None), within=30, what="the key trusted again")
        assert ask(other) == (403, "ERR-PYOCO-0015")


def _issue(nats_url: str, stack: Stack) -> str:
    command = ["fleet_auth.admin.cli:main", "api-key", "create", "--tenant", "acme", "--json"]
    done = run_program([*command, "--nats-url", nats_url], env=stack.env)
    assert done.returncode == 0, done.stderr
    return str(json.loads(done.stdout)["api_key"])
