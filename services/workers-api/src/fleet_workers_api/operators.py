"""Operators' changes to a worker: hide or show it, drain or resume it."""

import logging

from fleet_contracts.control import Control, ControlKind
from fleet_contracts.names import WireNames
from fleet_contracts.worker_record import WorkerRecord
from fleet_kit.errors import NatsUnavailable
from fleet_kit.logs.events import service_call
from fleet_kit.nats.link import NatsLink

from .registry import Registry

logger = logging.getLogger(__name__)


class Operators:
    def __init__(self, link: NatsLink, registry: Registry, names: WireNames) -> None:
        self._link = link
        self._registry = registry
        self._names = names

    async def hide(self, worker_id: str, hidden: bool) -> WorkerRecord:
        with service_call(logger, "workers", "hide" if hidden else "show", entity_id=f"worker:{worker_id}"):
            return await self._registry.change(worker_id, hidden=hidden)

    async def drain(self, worker_id: str, wanted: bool) -> WorkerRecord:
        """Drain or resume a worker. One that is offline sees it in its record when it comes back."""
        with service_call(logger, "workers", "drain" if wanted else "resume", entity_id=f"worker:{worker_id}"):
            record = await self._registry.change(worker_id, draining=wanted)
        try:
            hint = Control(kind=ControlKind.RECORD).encode()
            await self._link.send(self._names.control_subject(worker_id), hint)
        except NatsUnavailable as error:
            logger.info("the worker will see it at its next heartbeat: %s", error, extra={"worker_id": worker_id})
        return record
