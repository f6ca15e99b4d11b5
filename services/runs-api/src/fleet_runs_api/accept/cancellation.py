"""Cancels runs: records the request in the ledger and in KV, then notifies the holder, or ends a run without one."""

import asyncio
import logging
import time

from fleet_contracts.control import Control, ControlKind
from fleet_contracts.snapshot import RunSnapshot
from fleet_kit.errors import NatsUnavailable
from fleet_kit.http.identity import Identity
from fleet_kit.logs.events import service_call
from fleet_kit.nats.stores.documents import Stored

from ..dispatch.queued_jobs import QueuedJobs
from ..dispatch.relay import Relay
from ..errors import RunNotFound
from ..ledger.documents import without_holder
from ..read.views import RunViews
from ..resources import Part, Resources
from . import cancel_requests
from .cancel_requests import CancelRequest

logger = logging.getLogger(__name__)


class Cancellation(Part):
    def __init__(self, shared: Resources, *, views: RunViews, relay: Relay, jobs: QueuedJobs) -> None:
        super().__init__(shared)
        self._views = views
        self._relay = relay
        self._jobs = jobs

    async def cancel(self, run_id: str, caller: Identity, *, reason: str | None) -> RunSnapshot:
        """Record the request and return the run; a run that has ended is returned unchanged.

        Compare-and-set decides between concurrent writes: a run that ends first has ended, and of two requests the
        first one counts.
        """
        with service_call(logger, "runs", "cancel", entity_id=f"run:{run_id}") as logged:
            asked = await self._cancel(run_id, caller, reason)
            logged["run_status"] = asked.status
            return asked

    async def _cancel(self, run_id: str, caller: Identity, reason: str | None) -> RunSnapshot:
        """Write the ledger first, so that an acknowledged request survives any loss of data in NATS."""
        found = await self._views.find(run_id, tenant_id=caller.tenant_id)
        if found.is_terminal:
            return found
        now = time.time()
        request = CancelRequest(
            run_id,
            caller.tenant_id,
            by=_name_of(caller),
            reason=reason,
            now=now,
            # The relay writes the request to KV then, if this process has not done so.
            carry_at=now + self._settings.relay_retry_sec,
        )
        asked = await self._commits.write(cancel_requests.request_cancel, request)
        if asked is None:
            raise RunNotFound(run_id=run_id)
        if asked.is_terminal:
            return asked
        try:
            stored = await self._runs.announce(without_holder(asked))
        except NatsUnavailable as error:
            logger.info("the cancel of run %s is written to KV when NATS is back: %s", run_id, error)
            return asked
        self._relay.cancel_carried(run_id)
        if not stored.value.is_terminal:
            self._carry_out(stored)
        return stored.value

    async def stop(self) -> None:
        """Let the runs that are being ended end."""
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _carry_out(self, stored: Stored[RunSnapshot]) -> None:
        """Notify the holder or end the run, after the response. If this process dies, a worker sees the request."""
        self._spawn(self._notify_holder(stored.value) if stored.value.is_held else self._end_waiting(stored))

    async def _notify_holder(self, snapshot: RunSnapshot) -> None:
        assert snapshot.worker_id is not None
        message = Control(kind=ControlKind.CANCEL, run_id=snapshot.run_id)
        try:
            await self._link.send(self._settings.control_subject(snapshot.worker_id), message.encode())
        except NatsUnavailable:
            logger.info("the holder of run %s will see the cancel at its next heartbeat", snapshot.run_id)

    async def _end_waiting(self, stored: Stored[RunSnapshot]) -> None:
        """End a run that no worker holds."""
        run_id = stored.value.run_id

        def end(there: RunSnapshot | None) -> RunSnapshot | None:
            return None if there is None else there.end_cancelled(now=time.time())

        try:
            ended = await self._runs.change(run_id, end, known=stored, lenient=True)
            if ended is not None and ended.is_new:
                await self._jobs.remove_of_ended(run_id)
        except NatsUnavailable:
            logger.info("run %s will be ended when its job is delivered", run_id)


def _name_of(caller: Identity) -> str:
    return caller.api_key_id or caller.tenant_id
