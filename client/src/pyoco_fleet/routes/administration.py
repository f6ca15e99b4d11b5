"""API keys, health and metrics."""

from collections.abc import Sequence
from typing import Any

from ..calls import Call, as_json, as_text, given

Json = dict[str, Any]


def list_keys(
    *,
    tenant: str | None = None,
    include_revoked: bool | None = None,
    limit: int | None = None,
    cursor: str | None = None,
) -> Call[Json]:
    """A page of the keys of all tenants, the newest first."""
    params = given(tenant=tenant, include_revoked=include_revoked, limit=limit, cursor=cursor)
    return Call("GET", "/auth/keys", as_json, params=params)


def issue_key(
    tenant_id: str,
    *,
    scopes: Sequence[str] | None = None,
    name: str | None = None,
    expires_at: Any = None,
    expires_in_sec: Any = None,
) -> Call[Json]:
    """Issue a key for a tenant. The answer is the only place where it can be read."""
    body = given(tenant_id=tenant_id, scopes=scopes, name=name, expires_at=expires_at, expires_in_sec=expires_in_sec)
    return Call("POST", "/auth/keys", as_json, json=body)


def get_key(key_id: str) -> Call[Json]:
    """One key, without the key itself."""
    return Call("GET", "/auth/keys/{key_id}", as_json, {"key_id": key_id})


def revoke_key(key_id: str) -> Call[Json]:
    """Revoke a key; revoking it again changes nothing."""
    return Call("POST", "/auth/keys/{key_id}/revoke", as_json, {"key_id": key_id}, repeatable=True)


def get_health() -> Call[Json]:
    """Whether the fleet takes runs, and what it waits for."""
    return Call("GET", "/health", as_json)


def get_metrics() -> Call[str]:
    """The metrics of the fleet, in the text format of Prometheus."""
    return Call("GET", "/metrics", as_text)
