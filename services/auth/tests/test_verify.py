"""GET /verify: what the gateway learns about a caller."""

import time

import pytest
from pydantic import SecretStr

from fleet_auth.main import build
from fleet_auth.settings import Settings
from fleet_testkit.apps import running
from fleet_testkit.buckets import Bucket
from fleet_testkit.nats_server import NatsServer
from fleet_testkit.scrapes import Scrape

from .conftest import KEY, SECRET, auth, key_record, until_status, verify

PEPPER = SecretStr("hush")


async def test_while_authentication_is_off_everybody_is_anonymous_and_may_do_everything(
    nats_server: NatsServer,
) -> None:
    async with auth(nats_server, mode="none") as client:
        for key in (None, "whatever"):
            answer = await verify(client, key)
            assert answer.status_code == 204
            assert answer.headers["X-Pyoco-Tenant-Id"] == "anonymous"
            assert answer.headers["X-Pyoco-Api-Key-Id"] == ""
            assert answer.headers["X-Pyoco-Scopes"].split() == [
                "admin",
                "metrics:read",
                "runs:read",
                "runs:write",
                "wheels:read",
                "wheels:write",
                "workers:read",
                "workers:write",
            ]


@pytest.mark.own_nats
async def test_without_authentication_everybody_is_let_in_while_nats_is_away_but_readiness_fails(
    nats_server: NatsServer,
) -> None:
    nats_server.stop()
    async with running(build(Settings(nats_url=nats_server.url))) as client:
        assert (await verify(client)).status_code == 204
        ready = await client.get("/ready")
        assert ready.status_code == 503
        assert "nats" in ready.json()["waiting_for"]


async def test_without_a_key_the_caller_is_asked_for_one(nats_server: NatsServer) -> None:
    async with auth(nats_server) as client:
        for answer in (await verify(client), await verify(client, "")):
            assert answer.status_code == 401
            assert answer.json()["error"]["code"] == "UNAUTHENTICATED"
            assert answer.json()["error"]["meta"]["err_id"] == "ERR-PYOCO-0014"


async def test_verdicts_are_counted(nats_server: NatsServer) -> None:
    async with auth(nats_server) as client:
        await verify(client)
        for _ in range(2):
            await verify(client, f"pyoco_never-issued_{SECRET}")
        seen = Scrape((await client.get("/metrics")).text)
        counted = {
            verdict: seen.value("pyoco_auth_verifications_total", verdict=verdict)
            for verdict in ("admitted", "key_missing", "key_refused", "undecided")
        }
        assert counted == {"admitted": 0, "key_missing": 1, "key_refused": 2, "undecided": 0}


async def test_an_unknown_key_is_refused(nats_server: NatsServer) -> None:
    async with auth(nats_server) as client:
        answer = await verify(client, f"pyoco_never-issued_{SECRET}")
        assert answer.status_code == 403
        assert answer.json()["error"]["code"] == "FORBIDDEN"
        assert answer.json()["error"]["meta"]["err_id"] == "ERR-PYOCO-0015"
        assert "never-issued" not in answer.text


@pytest.mark.parametrize("pepper", [None, PEPPER])
async def test_a_key_stands_for_its_tenant_its_id_and_its_scopes_until_it_is_revoked(
    nats_server: NatsServer, bucket: Bucket, pepper: SecretStr | None
) -> None:
    async with auth(nats_server, auth_pepper=pepper) as client:
        await bucket.put("id1", key_record(pepper=pepper))
        answer = await until_status(client, KEY, 204)
        assert answer.headers["X-Pyoco-Tenant-Id"] == "acme"
        assert answer.headers["X-Pyoco-Api-Key-Id"] == "id1"
        assert answer.headers["X-Pyoco-Scopes"] == "runs:read runs:write"
        assert (await verify(client, KEY + "x")).status_code == 403
        await bucket.put("id1", key_record(pepper=pepper, revoked_at=2.0))
        await until_status(client, KEY, 403)


async def test_a_deleted_or_replaced_record_takes_its_key_away(nats_server: NatsServer, bucket: Bucket) -> None:
    async with auth(nats_server) as client:
        await bucket.put("id1", key_record())
        await until_status(client, KEY, 204)
        another = f"pyoco_id1_{SECRET[::-1]}"
        await bucket.put("id1", key_record(another))
        await until_status(client, another, 204)
        assert (await verify(client, KEY)).status_code == 403
        await bucket.delete("id1")
        await until_status(client, another, 403)


async def test_a_key_hashed_without_the_pepper_is_unknown_once_there_is_one(
    nats_server: NatsServer, bucket: Bucket
) -> None:
    await bucket.put("id1", key_record(pepper=None))
    async with auth(nats_server, auth_pepper=PEPPER) as client:
        assert (await verify(client, KEY)).status_code == 403


async def test_unreadable_records_and_keys_of_the_anonymous_tenant_open_nothing(
    nats_server: NatsServer, bucket: Bucket
) -> None:
    await bucket.put("id0", b"{not json")
    await bucket.put("id1", key_record().replace(b'"acme"', b'"anonymous"'))
    other, borrowed = f"pyoco_id2_{SECRET}", f"pyoco_id3_{SECRET}"
    await bucket.put("id2", key_record(other))
    # A record that says it is another's.
    await bucket.put("id3", key_record(borrowed, key_id="id2"))
    async with auth(nats_server) as client:
        assert (await verify(client, KEY)).status_code == 403
        assert (await verify(client, borrowed)).status_code == 403
        assert (await verify(client, other)).status_code == 204


async def test_a_key_opens_nothing_from_the_moment_it_expires(nats_server: NatsServer, bucket: Bucket) -> None:
    await bucket.put("id1", key_record(expires_at=time.time() + 1.5))
    async with auth(nats_server) as client:
        assert (await verify(client, KEY)).status_code == 204
        refused = await until_status(client, KEY, 403)
        unknown = await verify(client, f"pyoco_id9_{SECRET}")
        # An expired key is answered like one that never existed.
        assert refused.json()["detail"] == unknown.json()["detail"]


@pytest.mark.parametrize(
    "key",
    [
        "x",
        "pyoco_id1",
        "pyoco_id1_",
        f"pyoco__{SECRET}",
        f"pyoco_id1_{SECRET[:-1]}",
        f"pyoco_id1_{SECRET}x",
        f"pyoco_id1_{SECRET} ",
        f" {KEY}",
        f"PYOCO_id1_{SECRET}",
        f"pyoco_ID1_{SECRET}",
        f"pyoco_id1_{SECRET.upper()}",
        f"{KEY}, {KEY}",
        f"pyoco_id1_{SECRET}\u00e9",
        f"pyoco_id1_{'x' * 100_000}",
        f"pyoco_>_{SECRET}",
    ],
)
async def test_what_is_only_like_the_key_opens_nothing(nats_server: NatsServer, bucket: Bucket, key: str) -> None:
    await bucket.put("id1", key_record())
    async with auth(nats_server) as client:
        answer = await client.get("/verify", headers=[(b"X-API-Key", key.encode("latin-1"))])
        assert answer.status_code == 403


async def test_of_two_keys_none_is_trusted(nats_server: NatsServer, bucket: Bucket) -> None:
    await bucket.put("id1", key_record())
    async with auth(nats_server) as client:
        for pair in ((KEY, KEY), (KEY, "x"), ("", KEY)):
            answer = await client.get("/verify", headers=[("X-API-Key", key) for key in pair])
            assert answer.status_code == 403


async def test_the_key_header_has_the_configured_name(nats_server: NatsServer, bucket: Bucket) -> None:
    await bucket.put("id1", key_record())
    async with auth(nats_server, http_api_key_header="X-Fleet-Key") as client:
        assert (await verify(client, KEY)).status_code == 401
        assert (await client.get("/verify", headers={"X-Fleet-Key": KEY})).status_code == 204


def test_the_pepper_does_not_show() -> None:
    settings = Settings(auth_pepper=PEPPER)
    assert "hush" not in repr(settings)
    assert "hush" not in settings.model_dump_json()
