"""Clients that watch runs, and how long it takes until one of them hears of a change. Runs in the load process."""

import asyncio
import json
import random
import statistics
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

import nats

from fleet_contracts.names import WireNames

from .connection import HOST
from .errors import BenchFailed
from .load import run_in_loop

# The peer looks twice per second: changes come at any moment of its half second.
_LONGEST_PAUSE_SECONDS = 0.5
_TIMEOUT_SECONDS = 30.0
_OPENING_AT_ONCE = 50
_BUCKET = WireNames().runs_kv_bucket


class Watcher(asyncio.Protocol):
    """An event stream over HTTP/1.0, where bodies come without chunks."""

    def __init__(self, run_id: str, hear: Callable[[dict[str, Any]], None] | None) -> None:
        self._request = f"GET /runs/{run_id}/watch?timeout_sec=300 HTTP/1.0\r\nHost: {HOST}\r\n\r\n".encode()
        self._hear = hear
        self._received = b""
        self._transport: asyncio.Transport | None = None
        # Done with the first event.
        self.opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._received += data.replace(b"\r\n", b"\n")
        while b"\n\n" in self._received:
            block, _, self._received = self._received.partition(b"\n\n")
            if block.startswith(b"HTTP/"):
                if b" 200 " not in block.splitlines()[0]:
                    self._fail(f"watching was answered with {block[:80]!r}")
            else:
                if not self.opened.done():
                    self.opened.set_result(None)
                if self._hear is not None:
                    self._tell(block)

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(f"the stream ended before its first event ({exc or 'end of file'})")

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def _tell(self, block: bytes) -> None:
        assert self._hear is not None
        for line in block.split(b"\n"):
            if line.startswith(b"data:"):
                event = json.loads(line.removeprefix(b"data:"))
                if "snapshot" in event:
                    self._hear(event["snapshot"])

    def _fail(self, why: str) -> None:
        if not self.opened.done():
            self.opened.set_exception(BenchFailed(why))


def watch_delay_p50_ms(
    port: int,
    nats_url: str,
    run_id: str,
    *,
    nkey_file: str | None,
    crowd: Sequence[str],
    changes: int,
    seed: int,
) -> float:
    """Change a run in KV and wait until its watcher hears it; `crowd` are the runs that others watch meanwhile."""
    return run_in_loop(_watch(port, nats_url, run_id, nkey_file, crowd=crowd, changes=changes, seed=seed))


async def _watch(
    port: int, nats_url: str, run_id: str, nkey_file: str | None, *, crowd: Sequence[str], changes: int, seed: int
) -> float:
    heard: asyncio.Queue[tuple[float, float]] = asyncio.Queue()

    def hear(snapshot: dict[str, Any]) -> None:
        heard.put_nowait((snapshot["updated_at"], time.time()))

    others: list[Watcher] = []
    watcher: Watcher | None = None
    client = await nats.connect(nats_url, nkeys_seed=nkey_file)
    try:
        for first in range(0, len(crowd), _OPENING_AT_ONCE):
            group = crowd[first : first + _OPENING_AT_ONCE]
            others += await asyncio.gather(*(_open(port, other, None) for other in group))
        watcher = await _open(port, run_id, hear)
        runs = await client.jetstream().key_value(_BUCKET)
        chance = random.Random(seed)
        delays = []
        for _ in range(changes):
            await asyncio.sleep(chance.uniform(0, _LONGEST_PAUSE_SECONDS))
            snapshot = json.loads((await runs.get(run_id)).value or b"")
            changed_at = time.time()
            await runs.put(run_id, json.dumps({**snapshot, "updated_at": changed_at}).encode())
            delays.append(await _hear_of(heard, changed_at) - changed_at)
        return 1000 * statistics.median(delays)
    finally:
        for opened in (*others, *([watcher] if watcher else [])):
            opened.close()
        await client.close()


async def _open(port: int, run_id: str, hear: Callable[[dict[str, Any]], None] | None) -> Watcher:
    _, watcher = await asyncio.get_running_loop().create_connection(lambda: Watcher(run_id, hear), HOST, port)
    async with _time_limit("watching did not begin"):
        await watcher.opened
    return watcher


async def _hear_of(heard: asyncio.Queue[tuple[float, float]], changed_at: float) -> float:
    async with _time_limit("a watcher did not hear of a change"):
        while True:
            updated_at, arrived_at = await heard.get()
            if updated_at == changed_at:
                return arrived_at


@asynccontextmanager
async def _time_limit(what: str) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(_TIMEOUT_SECONDS):
            yield
    except TimeoutError as error:
        raise BenchFailed(f"{what} within {_TIMEOUT_SECONDS:g} s") from error
