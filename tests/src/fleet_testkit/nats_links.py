"""Links to NATS for tests, ready to be used."""

import asyncio
import functools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from fleet_kit.nats.link import NatsLink
from fleet_kit.nats.stores.object_writing import ObjectWriter
from fleet_kit.nats.stores.objects import StoredObject
from fleet_kit.settings import FleetSettings

from .nats_server import NatsServer


@asynccontextmanager
async def ready_link(
    nats_url: str,
    *,
    timeout_seconds: float = 5.0,
    prepare: Callable[[NatsLink], Awaitable[None]] | None = None,
) -> AsyncIterator[NatsLink]:
    """A connected link; `prepare` runs after every connect."""
    link = NatsLink(FleetSettings(nats_url=nats_url, nats_request_timeout_sec=timeout_seconds), name="test")
    if prepare is not None:
        link.after_connect(functools.partial(prepare, link))
    async with link:
        async with asyncio.timeout(30):
            await link.wait_ready()
        yield link


class PausesBeforeNaming(ObjectWriter):
    """Pauses the server just before an object's name is sent to it, until `resume`."""

    def __init__(self, link: NatsLink, bucket: str, server: NatsServer) -> None:
        super().__init__(link, bucket)
        self._server = server
        self._pauses = True

    async def find(self, name: str, *, linearizable: bool = False) -> StoredObject | None:
        found = await super().find(name, linearizable=linearizable)
        if self._pauses:
            self._server.pause()
        return found

    def resume(self) -> None:
        self._pauses = False
        self._server.resume()
