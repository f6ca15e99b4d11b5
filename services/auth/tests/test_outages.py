"""NATS away: how long auth trusts what it remembers, and what it knows again when NATS is back."""

import asyncio
import time

import nats
import pytest
from nats.js import api

from fleet_auth.main import build
from fleet_auth.settings import Settings
from fleet_testkit.apps import running
from fleet_testkit.buckets import Bucket
from fleet_testkit.nats_server import NatsServer
from fleet_testkit.waiting import eventually

from .conftest import KEY, OPERATOR, SECRET, auth, key_record, until_status, verify

UNKNOWN = f"pyoco_unknown_{SECRET}"


@pytest.mark.own_nats
async def test_while_nats_is_away_known_keys_work_and_unknown_ones_cannot_be_judged(
    nats_server: NatsServer, bucket: Bucket
) -> None:
    await bucket.put("id1", key_record())
    async with auth(nats_server) as client:
        assert (await verify(client, KEY)).status_code == 204
        nats_server.stop()
        answer = await until_status(client, UNKNOWN, 503)
        assert answer.json()["error"]["meta"]["err_id"] == "ERR-PYOCO-0003"
        assert answer.json()["error"]["meta"]["request_id"] == answer.headers["x-request-id"]
        # Not even a wrong secret of a known key: its record may have been replaced.
        assert (await verify(client, KEY + "x")).status_code == 503
        assert (await verify(client, KEY)).status_code == 204
        assert (await verify(client)).status_code == 401
        nats_server.start()
        await until_status(client, UNKNOWN, 403)
        assert (await verify(client, KEY)).status_code == 204


@pytest.mark.own_nats
async def test_a_known_key_is_trusted_for_so_long_and_no_longer(nats_server: NatsServer, bucket: Bucket) -> None:
    await bucket.put("id1", key_record())
    async with auth(nats_server, auth_stale_sec=3.0) as client:
        # As long as NATS answers the time begins anew.
        begun = time.monotonic()
        while time.monotonic() - begun < 4.0:
            assert (await verify(client, KEY)).status_code == 204
            await asyncio.sleep(0.05)
        nats_server.stop()
        stopped_at = time.monotonic()
        await until_status(client, UNKNOWN, 503)
        assert (await verify(client, KEY)).status_code == 204
        answer = await until_status(client, KEY, 503)
        # Counted from the last look at the bucket, which was at most a second before.
        assert 1.0 < time.monotonic() - stopped_at < 20
        assert answer.json()["error"]["meta"]["err_id"] == "ERR-PYOCO-0003"
        nats_server.start()
        await until_status(client, KEY, 204)


@pytest.mark.own_nats
async def test_a_nats_that_is_connected_and_silent_counts_as_away(nats_server: NatsServer, bucket: Bucket) -> None:
    await bucket.put("id1", key_record())
    async with auth(nats_server, auth_stale_sec=3.0) as client:
        assert (await verify(client, KEY)).status_code == 204
        nats_server.pause()
        await until_status(client, KEY, 503)
        await until_status(client, UNKNOWN, 503)
        nats_server.resume()
        await until_status(client, KEY, 204, within=20)
        await until_status(client, UNKNOWN, 403)


@pytest.mark.own_nats
async def test_a_key_that_is_known_to_be_over_is_refused_at_once_also_while_nats_is_away(
    nats_server: NatsServer, bucket: Bucket
) -> None:
    await bucket.put("id1", key_record(revoked_at=2.0))
    async with auth(nats_server) as client:
        nats_server.stop()
        await until_status(client, UNKNOWN, 503)
        assert (await verify(client, KEY)).status_code == 403


@pytest.mark.own_nats
async def test_an_auth_that_starts_while_nats_is_away_cannot_judge_any_key(nats_server: NatsServer) -> None:
    nats_server.stop()
    async with running(build(Settings(nats_url=nats_server.url, http_auth_mode="api_key"))) as client:
        for key in (KEY, UNKNOWN, "x"):
            answer = await verify(client, key)
            assert answer.status_code == 503
            assert answer.json()["error"]["meta"]["err_id"] == "ERR-PYOCO-0003"
        for method, path in (("POST", ""), ("GET", ""), ("GET", "/id1"), ("POST", "/id1/revoke")):
            answer = await client.request(method, f"/auth/keys{path}", headers=OPERATOR, json={"tenant_id": "acme"})
            assert (answer.status_code, answer.json()["error"]["meta"]["err_id"]) == (503, "ERR-PYOCO-0003")
        nats_server.start()
        await until_status(client, KEY, 403)


@pytest.mark.own_nats
async def test_what_changed_while_auth_was_cut_off_is_known_after_a_restart_of_nats(
    nats_server: NatsServer, bucket: Bucket
) -> None:
    await bucket.put("id1", key_record())
    other = f"pyoco_id2_{SECRET}"
    async with auth(nats_server) as client:
        await until_status(client, KEY, 204)
        nats_server.kill()
        nats_server.start()
        await until_status(client, UNKNOWN, 403)
        assert (await verify(client, KEY)).status_code == 204

        async def put(key: str, value: bytes) -> bool:
            try:
                return bool(await bucket.put(key, value))
            except Exception:  # noqa: BLE001 - the test's own connection may still be on its way back
                return False

        await eventually(lambda: put("id2", key_record(other)), what="the bucket taking a record again")
        await until_status(client, other, 204)
        await bucket.put("id1", key_record(revoked_at=2.0))
        await until_status(client, KEY, 403)


@pytest.mark.own_nats
async def test_a_wiped_bucket_means_that_all_keys_are_gone(nats_server: NatsServer, bucket: Bucket) -> None:
    await bucket.put("id1", key_record())
    async with auth(nats_server) as client:
        await until_status(client, KEY, 204)
        nats_server.kill()
        nats_server.wipe()
        nats_server.start()
        await until_status(client, KEY, 403, within=20)


@pytest.mark.own_nats
async def test_a_key_that_was_lost_before_the_watch_delivered_it_is_gone_as_well(nats_server: NatsServer) -> None:
    client_of_nats = await nats.connect(nats_server.url)
    jetstream = client_of_nats.jetstream()
    async with auth(nats_server) as client:
        for consumer in await jetstream.consumers_info("KV_pyoco_auth"):
            await jetstream.delete_consumer("KV_pyoco_auth", consumer.name)
        issued = (await client.post("/auth/keys", json={"tenant_id": "acme"}, headers=OPERATOR)).json()
        nats_server.kill()
        assert (await verify(client, issued["api_key"])).status_code == 204
        nats_server.wipe()
        nats_server.start()
        await until_status(client, issued["api_key"], 403, within=20)
    await client_of_nats.close()


async def test_a_bucket_that_is_emptied_behind_the_watch_lets_nobody_in_within_seconds(
    nats_server: NatsServer, bucket: Bucket
) -> None:
    """A purge of the whole stream is not seen by a watch, and neither is a bucket made anew."""
    client_of_nats = await nats.connect(nats_server.url)
    jetstream = client_of_nats.jetstream()
    async with auth(nats_server) as client:
        await bucket.put("id1", key_record())
        await until_status(client, KEY, 204)
        await jetstream.purge_stream("KV_pyoco_auth")
        await until_status(client, KEY, 403, within=30)
        await bucket.put("id1", key_record())
        await until_status(client, KEY, 204)
        await jetstream.delete_stream("KV_pyoco_auth")
        await until_status(client, KEY, 403, within=30)
        # It is there again, and followed.
        await bucket.put("id1", key_record())
        await until_status(client, KEY, 204)
    await client_of_nats.close()


async def test_a_watch_that_died_is_made_anew(nats_server: NatsServer, bucket: Bucket) -> None:
    client_of_nats = await nats.connect(nats_server.url)
    jetstream = client_of_nats.jetstream()
    async with auth(nats_server) as client:
        for consumer in await jetstream.consumers_info("KV_pyoco_auth"):
            assert isinstance(consumer, api.ConsumerInfo)
            await jetstream.delete_consumer("KV_pyoco_auth", consumer.name)
        await bucket.put("id1", key_record())
        await until_status(client, KEY, 204, within=30)
        await bucket.put("id1", key_record(revoked_at=2.0))
        await until_status(client, KEY, 403, within=30)
    await client_of_nats.close()


async def test_verifying_goes_on_while_keys_come_and_go(nats_server: NatsServer, bucket: Bucket) -> None:
    """Reading the bucket anew must never show half of it."""
    await bucket.put("id1", key_record())
    async with auth(nats_server) as client:
        await until_status(client, KEY, 204)
        answers: set[int] = set()

        async def change() -> None:
            for number in range(200):
                key = f"pyoco_k{number}_{SECRET}"
                await bucket.put(f"k{number}", key_record(key))

        changing = asyncio.create_task(change())
        begun = time.monotonic()
        while not changing.done() or time.monotonic() - begun < 2.5:
            answers.add((await verify(client, KEY)).status_code)
            await asyncio.sleep(0)
        await changing
        assert answers == {204}
