"""What must be there before a worker can work, and who makes it: the worker itself makes nothing on NATS."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

import nats.js.errors
from nats.js.api import ConsumerInfo, StreamInfo

from fleet_contracts.names import kv_stream
from fleet_kit.errors import NatsUnavailable
from fleet_kit.nats import NatsLink
from fleet_kit.nats_client import NotPermitted

from .settings import WorkerSettings

logger = logging.getLogger(__name__)

T = TypeVar("T")

_LOOK_INTERVAL_SECONDS = 0.05
# Somebody who starts a moment later than we is awaited eagerly, somebody who is away is not.
_EAGER_LOOKS = 100
_PATIENT_LOOK_INTERVAL_SECONDS = 0.5


class Prerequisites:
    def __init__(self, link: NatsLink, settings: WorkerSettings) -> None:
        self._link = link
        self._settings = settings
        # The shortest AckWait of our queues.
        self.ack_wait_seconds = float("inf")

    async def wait_for_registry(self) -> None:
        """Where a worker announces itself. A hook of the link."""
        stream = kv_stream(self._settings.workers_kv_bucket)

        async def look() -> StreamInfo:
            return await self._link.jetstream.stream_info(stream)

        await self._wait_for(look, "the registry of workers, which workers-api or runs-api makes")

    async def wait_for_queues(self) -> None:
        """Made by runs-api when it sees what tags a worker announces. A hook of the link, after the announcement."""
        ack_waits = [await self._ack_wait_of(tag) for tag in self._settings.tags]
        self.ack_wait_seconds = min(ack_waits)

    async def _ack_wait_of(self, tag: str) -> float:
        settings = self._settings

        async def look() -> ConsumerInfo:
            info: ConsumerInfo = await self._link.jetstream.consumer_info(
                settings.work_stream, settings.work_durable(tag)
            )
            return info

        try:
            info = await self._wait_for(look, f"the queue of tag {tag}, which runs-api makes")
        except NotPermitted as error:
            raise NatsUnavailable(
                f"the NATS user of this worker may not take jobs of tag {tag}; make credentials for it with "
                f"`pyoco-server worker-credentials --worker-id {settings.worker_id} --tags {','.join(settings.tags)}`"
            ) from error
        return info.config.ack_wait or float("inf")

    async def _wait_for(self, look: Callable[[], Awaitable[T]], what: str) -> T:
        connection = self._link.reconnects
        looks = 0
        while True:
            try:
                return await look()
            except nats.js.errors.NotFoundError:
                looks += 1
            if looks == 1:
                logger.info("waiting for %s", what)
            await asyncio.sleep(_LOOK_INTERVAL_SECONDS if looks <= _EAGER_LOOKS else _PATIENT_LOOK_INTERVAL_SECONDS)
            if self._link.reconnects != connection or not self._link.client.is_connected:
                raise NatsUnavailable(f"the connection was lost while waiting for {what}")
