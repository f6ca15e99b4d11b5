"""API keys for tests: the first of a fleet from the admin command, the others over HTTP with that key."""

import json
import subprocess
from collections.abc import Iterable
from typing import Any

from fleet_contracts.scopes import ALL_SCOPES

from .fleet import Fleet
from .waiting import wait_until

KEY_HEADER = "X-API-Key"


def secret_of(key: str) -> str:
    """The secret part of a key. It is base64url, so it may contain a `_`, too."""
    _prefix, _key_id, secret = key.split("_", 2)
    return secret


def admin_command(fleet: Fleet, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """`pyoco-server-admin api-key …`"""
    return fleet.admin("api-key", *arguments)


def issue_key(fleet: Fleet, tenant_id: str, scopes: Iterable[str] = ALL_SCOPES) -> dict[str, str]:
    """Make a key with the admin command, wait until auth knows it, return its header. KeyRing makes many."""
    done = admin_command(fleet, "create", "--tenant", tenant_id, "--scopes", ",".join(sorted(scopes)), "--json")
    assert done.returncode == 0, done.stderr
    header = {KEY_HEADER: str(json.loads(done.stdout)["api_key"])}

    def is_known() -> bool:
        refusal = fleet.client.get("/runs", headers=header)
        return refusal.status_code != 403 or "missing_scope" in refusal.text

    wait_until(is_known, what=f"the key of {tenant_id} known")
    return header


class KeyRing:
    """Issues and revokes keys of one fleet, as its operator does over HTTP."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._admin = issue_key(fleet, "operators")

    def issue(self, tenant_id: str, scopes: Iterable[str] = ALL_SCOPES, **wanted: Any) -> dict[str, str]:
        """The header with a new key."""
        return {KEY_HEADER: self.issue_in_full(tenant_id, scopes, **wanted)["api_key"]}

    def issue_in_full(self, tenant_id: str, scopes: Iterable[str] = ALL_SCOPES, **wanted: Any) -> dict[str, Any]:
        body = {"tenant_id": tenant_id, "scopes": sorted(scopes), **wanted}
        answer = self._fleet.client.post("/auth/keys", json=body, headers=self._admin)
        assert answer.status_code == 201, answer.text
        issued: dict[str, Any] = answer.json()
        return issued

    def revoke(self, key_id: str) -> None:
        answer = self._fleet.client.post(f"/auth/keys/{key_id}/revoke", headers=self._admin)
        assert answer.is_success, answer.text
