"""The commands of pyoco-server-admin share these options, and their way to NATS."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated

import typer

from fleet_kit.errors import NatsUnavailable
from fleet_kit.nats.link import NatsLink

from .settings import AdminSettings

PROGRAM = "pyoco-server-admin"
TIMEOUT_SECONDS = 5.0

NatsUrl = Annotated[str | None, typer.Option(help="NATS server; default: that of the data dir.", metavar="URL")]
DataDir = Annotated[Path | None, typer.Option(help="Data dir of the embedded stack (.fleet).", metavar="DIR")]


@asynccontextmanager
async def connected(link: NatsLink, settings: AdminSettings) -> AsyncIterator[NatsLink]:
    """The link once it is ready; NatsUnavailable if that takes too long."""
    async with link:
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                await link.wait_ready()
        except TimeoutError as error:
            where = ", ".join(url.rpartition("@")[2].rpartition("/")[2] for url in settings.nats_url.split(","))
            raise NatsUnavailable(
                f"NATS at {where} is unavailable ({link.down_because}); start the stack, or say where it is "
                "with --data-dir or --nats-url, and as which user to connect with --nkey-file"
            ) from error
        yield link


def say(sentence: str) -> None:
    typer.echo(f"{PROGRAM}: {sentence}", err=True)
