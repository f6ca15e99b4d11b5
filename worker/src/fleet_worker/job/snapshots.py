"""The runs bucket as a worker writes it: every snapshot within the size limit, and a span for each write."""

import logging
from collections.abc import Callable

from fleet_contracts.problems import Problem
from fleet_contracts.snapshot import RunSnapshot
from fleet_kit.logs.setup import problem_fields
from fleet_kit.nats.link import NatsLink
from fleet_kit.nats.stores.documents import Documents
from fleet_kit.nats.stores.kv import Bucket

from ..boundary.compaction import compact, without_tasks
from .telemetry.run_trace import writing

logger = logging.getLogger(__name__)

# Room for the headers of a message within NATS's maximum payload.
_HEADER_ROOM_BYTES = 1024


class Snapshots(Documents[RunSnapshot]):
    def __init__(
        self, link: NatsLink, bucket: str, *, max_bytes: int, on_write: Callable[[int], None] = lambda _: None
    ) -> None:
        """`on_write` is called with the size of every snapshot that was written."""
        super().__init__(Bucket(link, bucket), RunSnapshot)
        self._link = link
        self._max_bytes = max_bytes
        self._on_write = on_write

    async def write(self, key: str, value: RunSnapshot, *, revision: int) -> int:
        with writing(value):
            data = self.encode(value)
            written = await self.bucket.update(key, data, revision=revision)
        self._on_write(len(data))
        return written

    def as_stored(self, snapshot: RunSnapshot) -> RunSnapshot:
        """The snapshot as it is read after it was written: perhaps compacted."""
        return RunSnapshot.decode(self.encode(snapshot))

    def encode(self, value: RunSnapshot) -> bytes:
        data = value.encode()
        # NATS refuses larger messages, whatever the setting says.
        most = self._link.client.max_payload - _HEADER_ROOM_BYTES
        limit = min(self._max_bytes, most)
        if len(data) <= limit:
            return data
        smaller = compact(value, limit)
        data = smaller.encode()
        if len(data) > limit and value.is_terminal:
            logger.error(
                "the snapshot of run %s has %d bytes without its task records, more than the limit of %d; "
                "set PYOCO_MAX_RUN_SNAPSHOT_BYTES higher",
                value.run_id,
                len(data),
                limit,
                extra={"run_id": value.run_id, **problem_fields(Problem.SNAPSHOT_TOO_LARGE)},
            )
        return data if len(data) <= most else without_tasks(smaller).encode()
