"""API keys on a whole stack: issued by the command, used through the gateway, revoked within seconds."""

import json
import time
from pathlib import Path

import httpx
import pytest

from fleet_contracts.scopes import ALL_SCOPES
from fleet_testkit.api_keys import KEY_HEADER, KeyRing, admin_command, issue_key, secret_of
from fleet_testkit.fleet import Fleet, MakesFleets
from fleet_testkit.runs import read, submit
from fleet_testkit.waiting import wait_until

pytestmark = pytest.mark.long

MOST_SECONDS_TO_BITE = 3.0


@pytest.mark.also_composed("the gateway's cache and auth are in two containers")
@pytest.mark.parametrize("how", ["command", "http"])
def test_a_revoked_key_is_refused_within_three_seconds_through_the_gateway(guarded: Fleet, how: str) -> None:
    # Once is enough: a machine that stands still makes it longer, nothing makes it shorter.
    wait_until(
        lambda: _seconds_to_bite(guarded, how) < MOST_SECONDS_TO_BITE, within=20, what="a revocation biting in time"
    )


def _seconds_to_bite(guarded: Fleet, how: str) -> float:
    ring = KeyRing(guarded)
    key = ring.issue_in_full("revoked-soon")
    with httpx.Client(base_url=guarded.url, headers={KEY_HEADER: key["api_key"]}, timeout=30) as client:
        # In use, so that the gateway remembers it.
        for _ in range(20):
            assert client.get("/runs").status_code == 200
        if how == "http":
            ring.revoke(key["key_id"])
        else:
            done = admin_command(guarded, "revoke", "--key-id", key["key_id"])
            assert done.returncode == 0, done.stderr
        revoked_at = time.monotonic()
        wait_until(lambda: client.get("/runs").status_code == 403, within=30, what="the key being refused")
        seconds = time.monotonic() - revoked_at
        # Once refused it stays refused, whichever of nginx's processes answers.
        assert {client.get("/runs").status_code for _ in range(50)} == {403}
    return seconds


def test_a_new_key_opens_at_once_and_its_runs_carry_its_names(guarded: Fleet) -> None:
    key = KeyRing(guarded).issue_in_full("stamped", ["runs:read", "runs:write"])
    with httpx.Client(base_url=guarded.url, headers={KEY_HEADER: key["api_key"]}, timeout=30) as client:
        snapshot = read(client, submit(client, "hello", tag="nobody"))
        assert (snapshot["tenant_id"], snapshot["api_key_id"]) == ("stamped", key["key_id"])


@pytest.mark.also_composed("networks and secrets")
def test_the_command_finds_the_nats_of_its_fleet(guarded: Fleet) -> None:
    issued = json.loads(admin_command(guarded, "create", "--tenant", "by-command", "--name", "CI", "--json").stdout)
    listed = json.loads(admin_command(guarded, "list", "--tenant", "by-command", "--json").stdout)
    assert [(key["key_id"], key["name"], key["state"]) for key in listed] == [(issued["key_id"], "CI", "active")]


@pytest.mark.also_composed("volumes")
def test_keys_are_in_no_log_and_no_file(guarded: Fleet) -> None:
    """Neither those that open nor those that were tried."""
    good = KeyRing(guarded).issue("logged")[KEY_HEADER]
    bad = f"pyoco_0123456789abcdef_{'tried' * 9}"
    guarded.client.get("/runs", headers={KEY_HEADER: good})
    guarded.client.get("/runs", headers={KEY_HEADER: bad})
    with httpx.Client(base_url=guarded.url, headers={KEY_HEADER: good}, timeout=30) as client:
        for key in (good, bad):
            # Places into which a key may be put by mistake, or by somebody who wants it to be found.
            said = client.get("/runs", headers={"X-Request-Id": key, "User-Agent": key, "Referer": f"http://x/{key}"})
            assert said.headers["x-request-id"] != key
            for spelled in (key, key.replace("_", "%5F"), key.replace("_", "%255f"), f"%70{key[1:]}"):
                for path in (
                    "/runs/{}",
                    "/runs/{}/cancel",
                    "/workers/{}",
                    "/wheels/{}",
                    "/nowhere/{}",
                    "/runs?flow={}",
                ):
                    client.post(path.format(spelled))
                    client.get(path.format(spelled))
    # It may have the sign that parts it from its id.
    secret = secret_of(good).encode()
    for name, content in guarded.written():
        assert secret not in content, name
        assert bad.encode() not in content, name


@pytest.mark.also_composed("settings and volumes")
def test_keys_under_a_header_of_another_name_are_still_known_after_a_restart(
    new_fleet: MakesFleets, tmp_path: Path
) -> None:
    """Gateway, auth and dashboard agree on the header's name."""
    with new_fleet(tmp_path, auth=True, with_worker=False, env={"PYOCO_HTTP_API_KEY_HEADER": "X-Fleet-Key"}) as fleet:
        key = issue_key(fleet, "acme")[KEY_HEADER]
        assert '"apiKeyHeader": "X-Fleet-Key"' in fleet.client.get("/static/config.js").text
        refused = fleet.client.get("/runs", headers={KEY_HEADER: key})
        assert (refused.status_code, "X-Fleet-Key" in refused.json()["detail"]) == (401, True)

        def opens() -> bool:
            return fleet.client.get("/runs", headers={"X-Fleet-Key": key}).status_code == 200

        wait_until(opens, what="the key known")
        fleet.down()
        fleet.up()
        wait_until(opens, what="the key still known")


def test_without_authentication_keys_are_not_managed_over_http_but_by_the_command(stack: Fleet) -> None:
    wanted = {"tenant_id": "acme", "scopes": sorted(ALL_SCOPES)}
    refused = stack.client.post("/auth/keys", json=wanted)
    assert refused.status_code == 403
    assert "pyoco-server-admin" in refused.json()["detail"]
    done = admin_command(stack, "create", "--tenant", "acme", "--json")
    assert done.returncode == 0, done.stderr
    # The key opens nothing more while everybody may come in anyway.
    header = {KEY_HEADER: json.loads(done.stdout)["api_key"]}
    assert stack.client.get("/auth/keys", headers=header).status_code == 403
    admin_command(stack, "revoke", "--key-id", json.loads(done.stdout)["key_id"])
