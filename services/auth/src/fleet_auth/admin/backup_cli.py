"""The commands `pyoco-server-admin backup` and `restore`, with the operator's NATS user."""

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from pathlib import Path
from typing import IO, Annotated, TypeVar

import typer

from fleet_kit.errors import FleetError, NatsUnavailable
from fleet_kit.nats.link import NatsLink

from .backup import Copied, back_up, kept_streams, restore
from .settings import AdminSettings

T = TypeVar("T")

_PROGRAM = "pyoco-server-admin"
_PATIENCE_SECONDS = 5.0

NatsUrl = Annotated[str | None, typer.Option(help="NATS server; default: that of the data dir.", metavar="URL")]
DataDir = Annotated[Path | None, typer.Option(help="Data dir of the embedded stack (.fleet).", metavar="DIR")]
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
    settings = _settings(nats_url, data_dir, nkey_file)
    streams = kept_streams(settings, with_events=events)
    try:
        with nullcontext(sys.stdout.buffer) if out is None else _new_file(out) as file:
            _tell("copied", _connected(settings, lambda link: back_up(link, streams, file)))
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
    settings = _settings(nats_url, data_dir, nkey_file)
    with nullcontext(sys.stdin.buffer) if source is None else source.open("rb") as file:
        _tell("restored", _connected(settings, lambda link: restore(link, file, replicas=replicas)))


def _settings(nats_url: str | None, data_dir: Path | None, nkey_file: Path | None) -> AdminSettings:
    return AdminSettings.find(nats_url=nats_url, data_dir=data_dir, nkey_file=nkey_file, role="operator")


def _new_file(path: Path) -> IO[bytes]:
    """Create the file with mode 600, because it will hold hashes of keys. An existing file is not overwritten."""
    return open(path, "xb", opener=lambda name, flags: os.open(name, flags, 0o600))


def _connected(settings: AdminSettings, work: Callable[[NatsLink], Awaitable[T]]) -> T:
    async def go() -> T:
        async with NatsLink(settings, name=_PROGRAM) as link:
            try:
                async with asyncio.timeout(_PATIENCE_SECONDS):
                    await link.wait_ready()
            except TimeoutError as error:
                raise NatsUnavailable(
                    f"NATS is unavailable ({link.down_because}); say where it is with --data-dir or --nats-url, "
                    "and whom it knows us as with --nkey-file"
                ) from error
            return await work(link)

    return asyncio.run(go())


def _tell(what: str, copied: list[Copied]) -> None:
    for one in copied:
        typer.echo(f"{_PROGRAM}: {what} {one.stream}: {one.messages} messages, {one.size_bytes} bytes", err=True)
