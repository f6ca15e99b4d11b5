"""API keys for tests: the first of a stack by the operator's command, the others by that one over HTTP."""

import json
import subprocess
import sys
from collections.abc import Iterable
from typing import Any

from fleet_contracts.scopes import ALL_SCOPES

from .stack import Stack
from .waiting import wait_until

KEY_HEADER = "X-API-Key"
_COMMAND_SECONDS = 60


def admin_command(stack: Stack, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """`pyoco-server-admin api-key …` on the data dir of a stack."""
    return subprocess.run(
        [sys.executable, "-m", "fleet_auth.admin_cli", "api-key", *arguments, "--data-dir", str(stack.data_dir)],
        env=stack.env,
        capture_output=True,
        text=True,
        timeout=_COMMAND_SECONDS,
        check=False,
    )


def issue_key(stack: Stack, tenant_id: str, scopes: Iterable[str] = ALL_SCOPES) -> dict[str, str]:
    """The header with a new key of a tenant, once auth knows it; for many of them see KeyRing."""
    done = admin_command(stack, "create", "--tenant", tenant_id, "--scopes", ",".join(sorted(scopes)), "--json")
    assert done.returncode == 0, done.stderr
    header = {KEY_HEADER: str(json.loads(done.stdout)["api_key"])}

    def is_known() -> bool:
        refusal = stack.client.get("/runs", headers=header)
        return refusal.status_code != 403 or "missing_scope" in refusal.text

    wait_until(is_known, what=f"the key of {tenant_id} known")
    return header


class KeyRing:
    """Issues and revokes keys of one stack, as its operator does over HTTP."""

    def __init__(self, stack: Stack) -> None:
        self._stack = stack
        self._admin = issue_key(stack, "operators")

    def issue(self, tenant_id: str, scopes: Iterable[str] = ALL_SCOPES, **wanted: Any) -> dict[str, str]:
        """The header with a new key."""
        return {KEY_HEADER: self.issue_in_full(tenant_id, scopes, **wanted)["api_key"]}

    def issue_in_full(self, tenant_id: str, scopes: Iterable[str] = ALL_SCOPES, **wanted: Any) -> dict[str, Any]:
        body = {"tenant_id": tenant_id, "scopes": sorted(scopes), **wanted}
        answer = self._stack.client.post("/auth/keys", json=body, headers=self._admin)
        assert answer.status_code == 201, answer.text
        issued: dict[str, Any] = answer.json()
        return issued

    def revoke(self, key_id: str) -> None:
        answer = self._stack.client.post(f"/auth/keys/{key_id}/revoke", headers=self._admin)
        assert answer.is_success, answer.text
