"""Reads NATS from outside and publishes on it as a peer would. Every call opens its own connection."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeVar

import nats
from nats.aio.client import Client
from nats.js.api import ConsumerInfo
from nats.js.errors import NoKeysError, NotFoundError

from fleet_contracts.dead_letter import DeadLetter
from fleet_contracts.events import RunEvents
from fleet_contracts.names import WireNames, kv_stream

from .nats_users import operator_file

T = TypeVar("T")

_NAMES = WireNames()


class Wire:
    """Synchronous access to NATS, for tests that are not async."""

    def __init__(self, url: str) -> None:
        self._url = url

    def use(self, work: Callable[[Client], Awaitable[T]]) -> T:
        """Run `work` with a new connection."""

        async def connected() -> T:
            seed = operator_file(self._url)
            client = await nats.connect(self._url, nkeys_seed=None if seed is None else str(seed))
            try:
                return await work(client)
            finally:
                await client.close()

        return asyncio.run(connected())

    def snapshot(self, run_id: str) -> tuple[bytes, int]:
        """The snapshot of a run in KV, as bytes, and its revision."""

        async def get(client: Client) -> tuple[bytes, int]:
            entry = await (await client.jetstream().key_value(_NAMES.runs_kv_bucket)).get(run_id)
            assert entry.value is not None
            assert entry.revision is not None
            return entry.value, entry.revision

        return self.use(get)

    def write_snapshot(self, run_id: str, value: bytes, *, revision: int) -> int:
        """Write by compare-and-set; KeyWrongLastSequenceError if the revision is not the latest."""

        async def update(client: Client) -> int:
            bucket = await client.jetstream().key_value(_NAMES.runs_kv_bucket)
            return await bucket.update(run_id, value, last=revision)

        return self.use(update)

    def run_ids(self) -> set[str]:
        """The ids of all runs in KV."""

        async def keys(client: Client) -> set[str]:
            bucket = await client.jetstream().key_value(_NAMES.runs_kv_bucket)
            try:
                return set(await bucket.keys())
            except NoKeysError:
                return set()

        return self.use(keys)

    def publish_job(self, payload: bytes, *, tag: str) -> None:
        async def publish(client: Client) -> None:
            await client.jetstream().publish(_NAMES.work_subject(tag), payload)

        self.use(publish)

    def queued(self, tag: str) -> int:
        """How many jobs of a tag are in the work stream, delivered or not."""

        async def count(client: Client) -> int:
            subject = _NAMES.work_subject(tag)
            info = await client.jetstream().stream_info(_NAMES.work_stream, subjects_filter=subject)
            return (info.state.subjects or {}).get(subject, 0)

        return self.use(count)

    def consumer(self, tag: str) -> ConsumerInfo:
        async def look(client: Client) -> ConsumerInfo:
            info: ConsumerInfo = await client.jetstream().consumer_info(_NAMES.work_stream, _NAMES.work_durable(tag))
            return info

        return self.use(look)

    def dead_letters(self, tag: str) -> list[DeadLetter]:
        return [DeadLetter.decode(data) for data in self._messages(_NAMES.dlq_stream, _NAMES.dlq_subject(tag))]

    def events(self, run_id: str) -> list[RunEvents]:
        return [
            RunEvents.decode(data)
            for data in self._messages(_NAMES.events_stream, _NAMES.events_subject("*", run_id))
        ]

    def refusing_snapshots(self) -> AbstractContextManager[None]:
        """Within this context KV refuses every snapshot."""
        return self._refusing(kv_stream(_NAMES.runs_kv_bucket))

    def refusing_dead_letters(self) -> AbstractContextManager[None]:
        return self._refusing(_NAMES.dlq_stream)

    @contextmanager
    def _refusing(self, stream: str) -> Iterator[None]:
        """Within this context every message is larger than the stream allows."""
        before = self._api(f"$JS.API.STREAM.INFO.{stream}", {})["config"]
        self._api(f"$JS.API.STREAM.UPDATE.{stream}", {**before, "max_msg_size": 16})
        try:
            yield
        finally:
            self._api(f"$JS.API.STREAM.UPDATE.{stream}", before)

    def _messages(self, stream: str, subject: str) -> list[bytes]:
        async def collect(client: Client) -> list[bytes]:
            found: list[bytes] = []
            sequence = 0
            while True:
                try:
                    message = await client.jetstream().get_msg(stream, seq=sequence + 1, subject=subject, next=True)
                except NotFoundError:
                    return found
                assert message.seq is not None
                sequence = message.seq
                found.append(message.data or b"")

        return self.use(collect)

    def _api(self, subject: str, request: dict[str, Any]) -> dict[str, Any]:
        async def ask(client: Client) -> dict[str, Any]:
            answer: dict[str, Any] = json.loads((await client.request(subject, json.dumps(request).encode())).data)
            assert "error" not in answer, answer
            return answer

        return self.use(ask)
