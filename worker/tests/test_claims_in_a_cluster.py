"""A worker whose NATS server is behind the others draws no conclusion from what that one shows."""

import asyncio
import time
from collections.abc import Awaitable, Callable

import pytest

from fleet_contracts.job import Job
from fleet_contracts.snapshot import RunSnapshot
from fleet_contracts.status import RunStatus
from fleet_kit.errors import NatsUnavailable
from fleet_kit.nats.link import NatsLink, WrongRevision
from fleet_kit.nats.resources import ensure_bucket
from fleet_testkit.buckets import Bucket
from fleet_testkit.nats_cluster import NatsCluster, linked
from fleet_testkit.waiting import eventually
from fleet_worker.job.claims import Claims
from fleet_worker.job.delivery import Delivery
from fleet_worker.job.lease import Lease
from fleet_worker.job.snapshots import Snapshots
from fleet_worker.settings import WorkerSettings

pytestmark = pytest.mark.timeout(120)

BUCKET = WorkerSettings().runs_kv_bucket


async def made(link: NatsLink) -> bool:
    try:
        await ensure_bucket(link.jetstream, BUCKET, replicas=3)
    except NatsUnavailable:
        return False
    return True


def job(run_id: str) -> Job:
    return Job(run_id=run_id, flow_name="f", tag="default", submitted_at=1.0)


async def claim(link: NatsLink, run_id: str, *, num_delivered: int = 1) -> object:
    settings = WorkerSettings(nats_url="nats://unused", worker_id="w1")
    snapshots = Snapshots(link, BUCKET, max_bytes=100_000)
    claims = Claims(
        snapshots=snapshots, settings=settings, instance_id="i1", stopping=asyncio.Event(), outage_seconds=0
    )
    return await claims.claim(job(run_id), Delivery("reply", "subject", b"", 1, num_delivered, 0))


async def test_a_run_that_is_not_there_yet_or_was_reopened_is_neither_missing_nor_ended(cluster: NatsCluster) -> None:
    async with linked(cluster.servers[0].url) as near, linked(cluster.servers[2].url) as far:
        await eventually(lambda: made(near), within=30, what="servers that know each other")
        runs = Bucket(near, BUCKET)
        failed = RunSnapshot.pending(job("reopened"), now=time.time()).finish(RunStatus.FAILED, now=time.time())
        revision = await runs.create("reopened", failed.encode())
        await asyncio.to_thread(cluster.wait_serving, f"KV_{BUCKET}")
        await eventually(lambda: Bucket(far, BUCKET).get("reopened"), what="the end known everywhere")
        await asyncio.to_thread(cluster.cut_off)

        async def written(write: Callable[[], Awaitable[int]]) -> bool:
            try:
                await write()
            except NatsUnavailable:
                return False
            except WrongRevision:
                pass  # an earlier write that was not answered has arrived
            return True

        reopened, new = failed.reopen(now=time.time()), RunSnapshot.pending(job("new"), now=time.time())
        for write in (
            lambda: runs.update("reopened", reopened.encode(), revision=revision),
            lambda: runs.create("new", new.encode()),
        ):
            await eventually(lambda write=write: written(write), within=30, what="a majority that writes")

        async def claimed(run_id: str) -> object | None:
            try:
                return await claim(far, run_id, num_delivered=3)
            except NatsUnavailable:
                return None

        async def are_undecided() -> bool:
            return await claimed("reopened") is None and await claimed("new") is None

        # At the latest when a former leader has understood that it is none any more.
        await eventually(are_undecided, within=30, what="no conclusion")
        await asyncio.to_thread(cluster.mend)
        for run_id in ("reopened", "new"):
            assert isinstance(await eventually(lambda r=run_id: claimed(r), within=30, what="a claim"), Lease)
