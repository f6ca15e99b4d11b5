"""The commands `pyoco-server-admin backup` and `restore`, with the operator's NATS user."""

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from pathlib import Path
from typing import IO, Annotated

import typer

from fleet_kit.errors import FleetError
from fleet_kit.nats.link import NatsLink

from .backup import Copied, back_up, kept_streams, restore
from .connecting import PROGRAM, DataDir, NatsUrl, connected, say
from .settings import AdminSettings

NkeyFile = Annotated[Path | None, typer.Option(help="Seed of the NATS user of the operator.", metavar="FILE")]


def backup(
    out: Annotated[Path | None, typer.Option(help="A new file; default: standard output.", metavar="FILE")] = None,
    events: Annotated[bool, typer.Option(help="Events and output of runs, too.")] = True,
    nats_url: NatsUrl = None,
    data_dir: DataDir = None,
    nkey_file: NkeyFile = None,
) -> None:
    """Copy keys, wheels, their history, records of workers and events of runs into a tar file.

    While the fleet runs. Accepted runs are not in it: they are in the ledger, which its database backs up.
    """
    if out is None and sys.stdout.isatty():
        raise typer.BadParameter("it would fill your terminal; give --out FILE or redirect the output")
    settings = AdminSettings.find(nats_url, data_dir, nkey_file, role="operator")
    streams = kept_streams(settings, with_events=events)
    try:
        with nullcontext(sys.stdout.buffer) if out is None else _new_file(out) as file:
            _run("copied", settings, lambda link: back_up(link, streams, file))
    except FleetError:
        if out is not None:
            out.unlink()  # half a backup is none, and the next try may use the name
        raise


def restore_backup(
    source: Annotated[Path | None, typer.Option("--from", help="Default: standard input.", metavar="FILE")] = None,
    replicas: Annotated[
        int | None, typer.Option(min=1, max=5, help="Another number of copies in the NATS cluster than before.")
    ] = None,
    nats_url: NatsUrl = None,
    data_dir: DataDir = None,
    nkey_file: NkeyFile = None,
) -> None:
    """Bring a backup into a NATS that has none of it; before the services start."""
    settings = AdminSettings.find(nats_url, data_dir, nkey_file, role="operator")
    with nullcontext(sys.stdin.buffer) if source is None else source.open("rb") as file:
        _run("restored", settings, lambda link: restore(link, file, replicas=replicas))


def _new_file(path: Path) -> IO[bytes]:
    """Create the file with mode 600, because it will hold hashes of keys. An existing file is not overwritten."""
    return open(path, "xb", opener=lambda name, flags: os.open(name, flags, 0o600))


def _run(what: str, settings: AdminSettings, work: Callable[[NatsLink], Awaitable[list[Copied]]]) -> None:
    """Run `work` over a connection of its own, and report what it has copied."""

    async def over_nats() -> list[Copied]:
        async with connected(NatsLink(settings, name=PROGRAM), settings) as link:
            return await work(link)

    for one in asyncio.run(over_nats()):
        say(f"{what} {one.stream}: {one.messages} messages, {one.size_bytes} bytes")
