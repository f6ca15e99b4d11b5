"""Cancels runs: records the request in the ledger and in KV, then notifies the holder, or ends a run without one."""

import asyncio
import logging
import time
from collections.abc import Callable

from fleet_contracts.control import Control, ControlKind
from fleet_contracts.names import WireNames
from fleet_contracts.snapshot import RunSnapshot
from fleet_contracts.status import RunStatus
from fleet_kit.errors import NatsUnavailable
from fleet_kit.http.identity import Identity
from fleet_kit.logs.events import service_call
from fleet_kit.nats.kv import Bucket
from fleet_kit.nats.link import NatsLink, WrongRevision

from ..dispatch.queued_jobs import QueuedJobs
from ..dispatch.relay import Relay
from ..errors import RunNotFound
from ..ledger.documents import without_holder
from ..ledger.writer import GroupCommit
from ..read.views import RunViews
from . import cancel_requests
from .cancel_requests import CancelRequest

logger = logging.getLogger(__name__)


class Cancellation:
    def __init__(
        self,
        *,
        link: NatsLink,
        runs: Bucket,
        views: RunViews,
        commits: GroupCommit,
        relay: Relay,
        names: WireNames,
        jobs: QueuedJobs,
        carry_after_sec: float,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """The relay writes a request to KV after `carry_after_sec`, if this process has not done so."""
        self._link = link
        self._runs = runs
        self._views = views
        self._commits = commits
        self._relay = relay
        self._carry_after_sec = carry_after_sec
        self._names = names
        self._jobs = jobs
        self._clock = clock
        self._ending: set[asyncio.Task[None]] = set()

    async def cancel(self, run_id: str, caller: Identity, *, reason: str | None) -> RunSnapshot:
        """Record the request and return the run; a run that has ended is returned unchanged.

        Compare-and-set decides between concurrent writes: a run that ends first has ended, and of two requests the
        first one counts.
        """
        with service_call(logger, "runs", "cancel", entity_id=f"run:{run_id}") as told:
            asked = await self._cancel(run_id, caller, reason)
            told["run_status"] = asked.status
            return asked

    async def _cancel(self, run_id: str, caller: Identity, reason: str | None) -> RunSnapshot:
        """Write the ledger first, so that an acknowledged request survives any loss of data in NATS."""
        found = await self._views.find(run_id, tenant_id=caller.tenant_id)
        if found.is_terminal:
            return found
        now = self._clock()
        request = CancelRequest(
            run_id,
            caller.tenant_id,
            by=_name_of(caller),
            reason=reason,
            now=now,
            carry_at=now + self._carry_after_sec,
        )
        asked = await self._commits.write(cancel_requests.request_cancel, request)
        if asked is None:
            raise RunNotFound(run_id=run_id)
        if asked.is_terminal:
            return asked
        try:
            snapshot, revision = await self._relay.announce(without_holder(asked))
        except NatsUnavailable as error:
            logger.info("run %s is told to end when NATS is back: %s", run_id, error)
            return asked
        self._relay.cancel_carried(run_id)
        if not snapshot.is_terminal:
            self._bring_about(snapshot, revision)
        return snapshot

    async def stop(self) -> None:
        await asyncio.gather(*self._ending, return_exceptions=True)

    def _bring_about(self, snapshot: RunSnapshot, revision: int) -> None:
        """Notify the holder or end the run, after the response. If this process dies, a worker sees the request."""
        work = self._tell_holder(snapshot) if snapshot.is_held else self._end_waiting(snapshot, revision)
        task = asyncio.create_task(work)
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def _tell_holder(self, snapshot: RunSnapshot) -> None:
        assert snapshot.worker_id is not None
        message = Control(kind=ControlKind.CANCEL, run_id=snapshot.run_id)
        try:
            await self._link.send(self._names.control_subject(snapshot.worker_id), message.encode())
        except NatsUnavailable:
            logger.info("the holder of run %s will see the cancel at its next heartbeat", snapshot.run_id)

    async def _end_waiting(self, snapshot: RunSnapshot, revision: int) -> None:
        """End a run that no worker holds."""
        ended = snapshot.finish(RunStatus.CANCELLED, now=self._clock())
        try:
            await self._runs.update(snapshot.run_id, ended.encode(), revision=revision)
            await self._jobs.remove_of_ended(snapshot.run_id)
        except WrongRevision:
            logger.debug("run %s was ended by somebody else", snapshot.run_id)
        except NatsUnavailable:
            logger.info("run %s will be ended when its job is delivered", snapshot.run_id)


def _name_of(caller: Identity) -> str:
    return caller.api_key_id or caller.tenant_id
