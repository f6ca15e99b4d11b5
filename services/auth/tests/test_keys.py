"""Keys over HTTP: issued, listed, revoked, by operators only; the key itself is shown once."""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import httpx
import orjson
import pytest
from pydantic import SecretStr

from fleet_contracts.names import HEADER_API_KEY_ID, HEADER_SCOPES
from fleet_contracts.scopes import ALL_SCOPES
from fleet_testkit.api_keys import secret_of
from fleet_testkit.apps import ANONYMOUS
from fleet_testkit.buckets import Bucket
from fleet_testkit.nats_server import NatsServer

from .conftest import KEY, OPERATOR, auth, key_record, until_status, verify


@pytest.fixture
async def client(nats_server: NatsServer) -> AsyncIterator[httpx.AsyncClient]:
    async with auth(nats_server) as client:
        client.headers.update(OPERATOR)
        yield client


async def issue(client: httpx.AsyncClient, **wanted: Any) -> dict[str, Any]:
    answer = await client.post("/auth/keys", json={"tenant_id": "acme", **wanted})
    assert answer.status_code == 201, answer.text
    body: dict[str, Any] = answer.json()
    return body


async def test_a_new_key_opens_at_once_and_is_shown_this_once(client: httpx.AsyncClient, bucket: Bucket) -> None:
    answer = await client.post("/auth/keys", json={"tenant_id": "acme"})
    assert answer.status_code == 201
    assert answer.headers["cache-control"] == "no-store"
    issued = answer.json()
    key = issued["api_key"]
    assert key.startswith(f"pyoco_{issued['key_id']}_")
    assert len(key.removeprefix(f"pyoco_{issued['key_id']}_")) >= 43  # 32 bytes
    opened = await verify(client, key)
    assert (opened.status_code, opened.headers["X-Pyoco-Tenant-Id"]) == (204, "acme")
    assert opened.headers["X-Pyoco-Api-Key-Id"] == issued["key_id"]
    assert opened.headers["X-Pyoco-Scopes"] == "runs:read runs:write"
    stored = await bucket.get(issued["key_id"])
    assert stored is not None
    secret = secret_of(key)
    shown = (await client.get(f"/auth/keys/{issued['key_id']}")).json()
    listed = (await client.get("/auth/keys")).json()
    for text in (stored.value.decode(), str(shown), str(listed)):
        assert secret not in text
    assert "hash" not in str(shown) + str(listed) + str(issued)
    assert shown == {name: value for name, value in issued.items() if name != "api_key"}
    assert listed == {"items": [shown], "next_cursor": None}
    assert shown["created_by"] == "admin1"
    assert shown["state"] == "active"


async def test_two_keys_have_nothing_in_common(client: httpx.AsyncClient) -> None:
    issued = await asyncio.gather(*(issue(client) for _ in range(20)))
    assert len({key["api_key"] for key in issued}) == len({key["key_id"] for key in issued}) == 20


async def test_a_key_has_the_scopes_the_name_and_the_end_that_it_was_given(client: httpx.AsyncClient) -> None:
    ends = time.time() + 3600
    issued = await issue(client, scopes=["wheels:write", "admin", "admin"], name="夜間バッチ", expires_at=ends)
    assert (issued["scopes"], issued["name"], issued["expires_at"]) == (["admin", "wheels:write"], "夜間バッチ", ends)
    assert (await verify(client, issued["api_key"])).headers["X-Pyoco-Scopes"] == "admin wheels:write"
    soon = await issue(client, expires_in_sec=1)
    assert (await verify(client, soon["api_key"])).status_code == 204
    await until_status(client, soon["api_key"], 403)
    assert (await client.get(f"/auth/keys/{soon['key_id']}")).json()["state"] == "expired"
    assert (await issue(client, scopes=sorted(ALL_SCOPES)))["scopes"] == sorted(ALL_SCOPES)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"{", "not valid JSON"),
        (b"[]", "an object"),
        (b"\xff", "not valid JSON"),
        (b"[" * 100_000, "not valid JSON"),
        (b"{}", "tenant_id: Field required"),
        (b'{"tenant_id": ""}', "tenant_id"),
        (b'{"tenant_id": "a b"}', "tenant_id"),
        (b'{"tenant_id": "a\\r\\nX-Pyoco-Scopes: admin"}', "tenant_id"),
        (b'{"tenant_id": "anonymous"}', "choose another name"),
        (b'{"tenant_id": "acme", "scopes": []}', "scopes"),
        (b'{"tenant_id": "acme", "scopes": ["root"]}', "scopes"),
        (b'{"tenant_id": "acme", "scopes": "admin"}', "scopes"),
        (b'{"tenant_id": "acme", "name": "a\\u0000"}', "name"),
        (b'{"tenant_id": "acme", "name": "a\\u009b"}', "name"),
        (b'{"tenant_id": "acme", "expires_at": 1}', "has passed already"),
        (b'{"tenant_id": "acme", "expires_at": 1e999}', "expires_at"),
        (b'{"tenant_id": "acme", "expires_in_sec": 0}', "expires_in_sec"),
        (b'{"tenant_id": "acme", "expires_in_sec": 5, "expires_at": 9e9}', "not both"),
        (b'{"tenant_id": "acme", "key_hash": "0"}', "key_hash"),
    ],
)
async def test_a_wish_that_cannot_be_is_refused(client: httpx.AsyncClient, body: bytes, says: str) -> None:
    answer = await client.post("/auth/keys", content=body, headers={"content-type": "application/json"})
    assert (answer.status_code, answer.json()["error"]["meta"]["err_id"]) == (422, "ERR-PYOCO-0002")
    assert says in answer.json()["detail"]
    assert (await client.get("/auth/keys")).json()["items"] == []


async def test_a_revoked_key_opens_nothing_and_revoking_it_again_changes_nothing(
    client: httpx.AsyncClient, bucket: Bucket
) -> None:
    issued = await issue(client)
    revoked = await client.post(f"/auth/keys/{issued['key_id']}/revoke")
    assert revoked.status_code == 200
    assert revoked.json()["state"] == "revoked"
    assert (await verify(client, issued["api_key"])).status_code == 403
    again = await asyncio.gather(*(client.post(f"/auth/keys/{issued['key_id']}/revoke") for _ in range(5)))
    assert [answer.json() for answer in again] == [revoked.json()] * 5


async def test_revoking_does_not_undo_what_somebody_else_wrote_meanwhile(
    client: httpx.AsyncClient, bucket: Bucket
) -> None:
    """Compare-and-set, and fields of a newer version stay."""
    issued = await issue(client)
    key_id = issued["key_id"]
    entry = await bucket.get(key_id)
    assert entry is not None
    record = {**orjson.loads(entry.value), "rotation": "monthly"}

    async def rename(number: int) -> None:
        await bucket.put(key_id, orjson.dumps(record | {"name": f"name-{number}"}))

    answers = await asyncio.gather(
        *(rename(number) for number in range(5)), client.post(f"/auth/keys/{key_id}/revoke")
    )
    assert answers[-1].status_code in (200, 503)
    await client.post(f"/auth/keys/{key_id}/revoke")
    last = await bucket.get(key_id)
    assert last is not None
    stored = orjson.loads(last.value)
    assert stored["revoked_at"] is not None
    assert stored["rotation"] == "monthly"
    assert stored["name"] == "name-4"


@pytest.mark.parametrize("key_id", ["none", "a.b", "*", ">", "a%00b", "x" * 65, "é", "id_1"])
@pytest.mark.parametrize(("method", "more"), [("GET", ""), ("POST", "/revoke")])
async def test_an_unknown_key_is_not_found(client: httpx.AsyncClient, method: str, more: str, key_id: str) -> None:
    answer = await client.request(method, f"/auth/keys/{key_id}{more}")
    assert answer.status_code == 404
    assert answer.json()["detail"] == "There is no API key with this id."


async def test_a_list_shows_the_newest_first_in_pages_by_tenant_and_without_the_revoked(
    client: httpx.AsyncClient,
) -> None:
    issued = [await issue(client, tenant_id=("acme", "globex")[number % 2]) for number in range(7)]
    ids = [key["key_id"] for key in reversed(issued)]
    await client.post(f"/auth/keys/{ids[0]}/revoke")

    async def listed(**query: Any) -> list[str]:
        answer = await client.get("/auth/keys", params=query)
        assert answer.status_code == 200, answer.text
        return [key["key_id"] for key in answer.json()["items"]]

    assert await listed() == ids[1:]
    assert await listed(include_revoked=True) == ids
    assert await listed(tenant="acme", include_revoked=True) == ids[0::2]
    assert await listed(tenant="globex") == ids[1::2]
    assert await listed(tenant="nobody") == []
    walked: list[str] = []
    query: dict[str, Any] = {"limit": 3}
    while True:
        page = (await client.get("/auth/keys", params=query)).json()
        walked += [key["key_id"] for key in page["items"]]
        if page["next_cursor"] is None:
            break
        query["cursor"] = page["next_cursor"]
    assert walked == ids[1:]


@pytest.mark.parametrize("query", [{"limit": 0}, {"limit": 1001}, {"cursor": "x"}, {"include_revoked": "maybe"}])
async def test_a_list_query_that_cannot_be_is_refused(client: httpx.AsyncClient, query: dict[str, Any]) -> None:
    answer = await client.get("/auth/keys", params=query)
    assert (answer.status_code, answer.json()["error"]["meta"]["err_id"]) == (422, "ERR-PYOCO-0002")


ALL_OF_THEM = [("POST", ""), ("GET", ""), ("GET", "/id1"), ("POST", "/id1/revoke")]


@pytest.mark.parametrize(("method", "path"), ALL_OF_THEM)
async def test_only_an_admin_manages_keys(client: httpx.AsyncClient, bucket: Bucket, method: str, path: str) -> None:
    await bucket.put("id1", key_record())
    await until_status(client, KEY, 204)
    scopes = " ".join(ALL_SCOPES - {"admin"})
    answer = await client.request(
        method, f"/auth/keys{path}", headers={HEADER_SCOPES: scopes}, json={"tenant_id": "acme"}
    )
    assert answer.status_code == 403
    assert answer.json()["error"]["meta"]["missing_scope"] == "admin"
    assert (await verify(client, KEY)).status_code == 204
    assert [key["key_id"] for key in (await client.get("/auth/keys")).json()["items"]] == ["id1"]


@pytest.mark.parametrize(("method", "path"), ALL_OF_THEM)
async def test_while_authentication_is_off_keys_are_not_managed_over_http(
    nats_server: NatsServer, bucket: Bucket, method: str, path: str
) -> None:
    await bucket.put("id1", key_record())
    async with auth(nats_server, mode="none") as client:
        client.headers.update(ANONYMOUS)
        answer = await client.request(method, f"/auth/keys{path}", json={"tenant_id": "acme", "scopes": ["admin"]})
        assert (answer.status_code, answer.json()["error"]["meta"]["err_id"]) == (403, "ERR-PYOCO-0015")
        assert "pyoco-server-admin" in answer.json()["detail"]
    entry = await bucket.get("id1")
    assert entry is not None
    assert orjson.loads(entry.value)["revoked_at"] is None


async def test_a_key_issued_with_another_pepper_is_refused_and_the_log_says_why(
    nats_server: NatsServer, caplog: pytest.LogCaptureFixture
) -> None:
    async with auth(nats_server) as client:
        issued = await issue_as_operator(client)
        assert (await verify(client, issued["api_key"])).status_code == 204
    async with auth(nats_server, auth_pepper=SecretStr("hush")) as client:
        assert (await verify(client, issued["api_key"])).status_code == 403
        assert f"key {issued['key_id']} was issued with another PYOCO_AUTH_PEPPER" in caplog.text
        peppered = await issue_as_operator(client)
        assert (await verify(client, peppered["api_key"])).status_code == 204
    assert secret_of(issued["api_key"]) not in caplog.text


async def issue_as_operator(client: httpx.AsyncClient) -> dict[str, Any]:
    client.headers.update({**OPERATOR, HEADER_API_KEY_ID: "admin1"})
    return await issue(client)
