"""Backup and restore of data that only NATS has: keys, wheels, their history, worker records, run events."""

import asyncio
import io
import tarfile
import time
from dataclasses import dataclass
from typing import IO

import orjson

from fleet_contracts.names import WireNames, kv_stream, object_stream
from fleet_kit.nats.link import NatsLink
from fleet_kit.nats.stream_copies import Description, StreamRestore, copy_stream, existing_streams

_FORMAT = 1
_CONTENTS = "backup.json"
_DESCRIPTION = "stream.json"
_END = "end.json"


class RestoreRefused(Exception):
    """The archive is not a usable backup, or the restore would overwrite something; the message says what."""


@dataclass(frozen=True, slots=True)
class Copied:
    stream: str
    messages: int
    size_bytes: int


def kept_streams(names: WireNames, *, with_events: bool) -> list[str]:
    """The streams that cannot be rebuilt from the ledger, as jobs, snapshots and dead letters can."""
    return [
        kv_stream(names.auth_kv_bucket),
        object_stream(names.wheel_object_store_bucket),
        kv_stream(names.wheel_history_kv_bucket),
        kv_stream(names.workers_kv_bucket),
        *([names.events_stream] if with_events else []),
    ]


async def back_up(link: NatsLink, streams: list[str], out: IO[bytes]) -> list[Copied]:
    """Write the streams to a tar file, sequentially, so that it may be a pipe."""
    found = await existing_streams(link, streams)
    with tarfile.open(fileobj=out, mode="w|") as archive:
        about = {"format": _FORMAT, "made_at": time.time(), "streams": found}
        await asyncio.to_thread(_add, archive, _CONTENTS, orjson.dumps(about))
        return [await _copy(link, stream, archive) for stream in found]


async def restore(link: NatsLink, source: IO[bytes], *, replicas: int | None) -> list[Copied]:
    """Restore into a NATS that has none of these streams: existing ones are never overwritten."""
    try:
        with tarfile.open(fileobj=source, mode="r|") as archive:
            return await _restore_all(link, archive, replicas=replicas)
    except (tarfile.TarError, EOFError, orjson.JSONDecodeError, KeyError) as error:
        raise RestoreRefused(f"this is no backup, or only a part of one ({error})") from error


async def _copy(link: NatsLink, stream: str, archive: tarfile.TarFile) -> Copied:
    number = size = messages = 0
    async for piece in copy_stream(link, stream):
        if isinstance(piece, dict):
            messages = piece["state"]["messages"]
            await asyncio.to_thread(_add, archive, f"{stream}/{_DESCRIPTION}", orjson.dumps(piece))
        else:
            number += 1
            size += len(piece)
            await asyncio.to_thread(_add, archive, f"{stream}/{number:08}", piece)
    await asyncio.to_thread(_add, archive, f"{stream}/{_END}", orjson.dumps({"pieces": number}))
    return Copied(stream, messages, size)


async def _restore_all(link: NatsLink, archive: tarfile.TarFile, *, replicas: int | None) -> list[Copied]:
    name, content = await asyncio.to_thread(_next, archive)
    about = orjson.loads(content) if name == _CONTENTS else {}
    if about.get("format") != _FORMAT:
        raise RestoreRefused("this is no backup of a fleet, or one of a later version")
    if there := await existing_streams(link, about["streams"]):
        raise RestoreRefused(
            f"NATS has {', '.join(there)} already; restore into an empty one, before the services start"
        )
    return [await _restore_one(link, archive, stream, replicas=replicas) for stream in about["streams"]]


async def _restore_one(link: NatsLink, archive: tarfile.TarFile, stream: str, *, replicas: int | None) -> Copied:
    name, content = await asyncio.to_thread(_next, archive)
    if name != f"{stream}/{_DESCRIPTION}":
        raise RestoreRefused(f"{name} comes where {stream} begins")
    description: Description = orjson.loads(content)
    if replicas is not None:
        description["config"]["num_replicas"] = replicas
    going = StreamRestore(link, description)
    await going.begin()
    number = size = 0
    while True:
        name, content = await asyncio.to_thread(_next, archive)
        if name == f"{stream}/{_END}":
            break
        number += 1
        size += len(content)
        await going.send(content)
    if orjson.loads(content)["pieces"] != number:
        raise RestoreRefused(f"{stream} is not whole")
    await going.end()
    return Copied(stream, description["state"]["messages"], size)


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mode, member.mtime = len(content), 0o600, int(time.time())
    archive.addfile(member, io.BytesIO(content))


def _next(archive: tarfile.TarFile) -> tuple[str, bytes]:
    member = archive.next()
    file = archive.extractfile(member) if member is not None else None
    if member is None or file is None:
        raise RestoreRefused("the archive ends too early")
    content = file.read()
    if len(content) != member.size:
        raise RestoreRefused("the archive ends too early")
    return member.name, content
