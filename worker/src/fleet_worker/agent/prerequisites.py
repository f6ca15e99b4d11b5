"""Waits for the registry bucket and the queues, which services make: the worker creates nothing on NATS."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Any, TypeVar

import nats.errors
import orjson

from fleet_contracts.names import kv_stream, kv_subject
from fleet_kit.errors import NatsUnavailable
from fleet_kit.nats.client import NotPermitted
from fleet_kit.nats.link import NatsLink

from ..settings import WorkerSettings

logger = logging.getLogger(__name__)

T = TypeVar("T")

_LOOK_INTERVAL_SECONDS = 0.05
# Poll fast at first, for a service that starts at the same time; poll slowly for one that is down.
_EAGER_LOOKS = 100
_SLOW_LOOK_INTERVAL_SECONDS = 0.5


class _Missing(Exception):
    """The bucket or the queue does not exist yet."""


class Prerequisites:
    def __init__(self, link: NatsLink, settings: WorkerSettings) -> None:
        self._link = link
        self._settings = settings
        # The shortest AckWait of our queues.
        self.ack_wait_seconds = float("inf")

    async def wait_for_registry(self) -> None:
        """Wait for the bucket in which workers announce themselves. A hook of the link."""
        await self._wait_for(self._registry, "the registry of workers, which workers-api or runs-api makes")

    async def wait_for_queues(self) -> None:
        """Wait for the queues, which runs-api makes after the worker has announced its tags. A hook of the link."""
        self.ack_wait_seconds = min([await self._ack_wait_of(tag) for tag in self._settings.tags])

    async def _registry(self) -> None:
        """Raises _Missing if the bucket does not exist; it need not contain our record."""
        settings = self._settings
        stream = kv_stream(settings.workers_kv_bucket)
        record = kv_subject(settings.workers_kv_bucket, settings.worker_id)
        try:
            await self._link.request(f"$JS.API.DIRECT.GET.{stream}.{record}")
        except NatsUnavailable as error:
            if not isinstance(error.__cause__, nats.errors.NoRespondersError):
                raise
            if settings.nats_nkey is not None:
                raise _Missing from error
            # A bucket that another program made may not allow direct gets.
            await self._ask(f"STREAM.INFO.{stream}")

    async def _ack_wait_of(self, tag: str) -> float:
        settings = self._settings
        consumer = f"CONSUMER.INFO.{settings.work_stream}.{settings.work_durable(tag)}"
        try:
            info = await self._wait_for(lambda: self._ask(consumer), f"the queue of tag {tag}, which runs-api makes")
        except NatsUnavailable as error:
            if not isinstance(error.__cause__, NotPermitted):
                raise
            raise NatsUnavailable(
                f"the NATS user of this worker may not take jobs of tag {tag}; make credentials for it with "
                f"`pyoco-server worker-credentials --worker-id {settings.worker_id} --tags {','.join(settings.tags)}`"
            ) from error
        nanoseconds = info["config"].get("ack_wait")
        return nanoseconds / 1e9 if nanoseconds else float("inf")

    async def _ask(self, what: str) -> dict[str, Any]:
        answer: dict[str, Any] = orjson.loads((await self._link.request_api(what)).data)
        if (error := answer.get("error")) is None:
            return answer
        if error.get("code") == HTTPStatus.NOT_FOUND:
            raise _Missing
        raise NatsUnavailable(f"JetStream refused {what}: {error.get('description')}")

    async def _wait_for(self, look: Callable[[], Awaitable[T]], what: str) -> T:
        connection = self._link.reconnects
        looks = 0
        while True:
            try:
                return await look()
            except _Missing:
                looks += 1
            if looks == 1:
                logger.info("waiting for %s", what)
            await asyncio.sleep(_LOOK_INTERVAL_SECONDS if looks <= _EAGER_LOOKS else _SLOW_LOOK_INTERVAL_SECONDS)
            if self._link.reconnects != connection or not self._link.client.is_connected:
                raise NatsUnavailable(f"the connection was lost while waiting for {what}")
