"""The API key records of the bucket in memory, and how current they are."""

import asyncio
import logging
import time
from collections.abc import Iterable

from nats.js.api import StreamInfo

from fleet_contracts.messages import MalformedMessage
from fleet_kit.errors import NatsUnavailable
from fleet_kit.logs.rate_limit import RateLimitedLog
from fleet_kit.nats.link import NatsLink
from fleet_kit.nats.resources import ensure_bucket
from fleet_kit.nats.stores.kv import Bucket, Mirror

from .records import KeyRecord, key_id_of, pepper_mark
from .settings import KeySettings

logger = logging.getLogger(__name__)

_LOOK_INTERVAL_SECONDS = 1.0
# Without contact to the bucket for this long, an unknown key may have been issued meanwhile.
_UNSURE_AFTER_SECONDS = 5.0
# How long a server of a NATS cluster may lag behind the others: interval and number of the checks.
_LAG_SECONDS = 0.02
_LOOKS_PAST_LAG = 50


class Keys:
    """Watches the bucket, and checks every second whether the watch has missed anything.

    The age of the records counts from the last check: a connection can be up and yet silent, and a bucket can be
    purged or recreated without the watch noticing.
    """

    def __init__(self, link: NatsLink, settings: KeySettings, *, stale_sec: float) -> None:
        self.link = link
        self.bucket = Bucket(link, settings.auth_kv_bucket)
        self.pepper = settings.auth_pepper
        self._stale_sec = stale_sec
        self._replicas = settings.nats_replicas
        self._mirror = Mirror(link, self.bucket.name, on_change=self._apply)
        self._records: dict[str, KeyRecord] = {}
        self._reading = asyncio.Lock()
        self._failures = RateLimitedLog()
        self._looking: asyncio.Task[None] | None = None
        # The state of the bucket's stream when it was read, and when that was last confirmed.
        self._seen: tuple[object, ...] | None = None
        self._current_at = float("-inf")

    async def load(self) -> None:
        """Read the whole bucket and watch it. A hook of the link."""
        await self._read()
        if self._looking is None:
            self._looking = asyncio.create_task(self._poll())

    async def stop(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)
        await self._mirror.stop()

    def find(self, api_key: str) -> KeyRecord | None:
        """The record of an API key; None if there is none. NatsUnavailable if the records are too old to decide."""
        key_id = key_id_of(api_key)
        record = self._records.get(key_id) if key_id else None
        if record is not None and record.matches(api_key, self.pepper):
            self._require(self._stale_sec)
            return record
        self.link.require()
        self._require(_UNSURE_AFTER_SECONDS)
        if record is not None and record.pepper != pepper_mark(self.pepper):
            logger.warning(
                "key %s was issued with another PYOCO_AUTH_PEPPER than auth has; give both the same", record.key_id
            )
        return None

    @property
    def count(self) -> int:
        return len(self._records)

    def get(self, key_id: str) -> KeyRecord | None:
        self.link.require()
        return self._records.get(key_id)

    def all(self) -> Iterable[KeyRecord]:
        self.link.require()
        return self._records.values()

    def note(self, record: KeyRecord) -> None:
        """Apply a write of this process at once, without waiting for the watch."""
        self._records[record.key_id] = record

    def _require(self, seconds: float) -> None:
        """Raise NatsUnavailable if the last check is longer ago than this."""
        if time.monotonic() - self._current_at > seconds:
            reason = self.link.down_because or "it does not answer"
            raise NatsUnavailable(f"NATS is unavailable ({reason}); try again when it is back", reason=reason)

    async def _read(self) -> None:
        async with self._reading:
            asked_at = time.monotonic()
            # Taken before reading, so that the next check finds a concurrent change.
            info = await self._look_at_bucket()
            seen = _shape(info)
            await self._mirror.restart()
            await self._catch_up(info)
            # Records noted here that never came through the watch: the bucket has lost them.
            for key_id in self._records.keys() - self._mirror.values.keys():
                del self._records[key_id]
            self._seen, self._current_at = seen, asked_at

    async def _poll(self) -> None:
        while True:
            await asyncio.sleep(min(_LOOK_INTERVAL_SECONDS, self._stale_sec / 4))
            if self.link.down_because is not None:
                continue
            try:
                await self._look()
            except Exception as error:
                level = self._failures.level(type(error).__name__)
                is_news = level > logging.DEBUG
                logger.log(level, "could not look at the bucket %s, trying again", self.bucket.name, exc_info=is_news)
            else:
                self._failures.recovered()

    async def _look(self) -> None:
        asked_at = time.monotonic()
        if _shape(await self._look_at_bucket()) != self._seen:
            await self._read()
        else:
            self._current_at = max(self._current_at, asked_at)

    async def _catch_up(self, info: StreamInfo) -> None:
        """Wait for the watch, whose server may lag behind the one that reported the state of the stream."""
        for _ in range(_LOOKS_PAST_LAG):
            if not info.state.messages or self._mirror.revision >= info.state.last_seq:
                return
            await asyncio.sleep(_LAG_SECONDS)

    async def _look_at_bucket(self) -> StreamInfo:
        return await ensure_bucket(self.link.jetstream, self.bucket.name, replicas=self._replicas)

    def _apply(self, key: str, value: bytes | None) -> None:
        self._records.pop(key, None)
        if value is None:
            return
        try:
            record = KeyRecord.decode(value)
            if record.key_id != key:
                raise MalformedMessage("it is under the name of another")
        except MalformedMessage as error:
            logger.warning("an unusable key record is ignored: %s", error, extra={"meta": {"key": key}})
        else:
            self._records[key] = record


def _shape(info: StreamInfo) -> tuple[object, ...]:
    """A fingerprint of the stream: it differs after every write, purge or recreation."""
    state = info.state
    return info.created, state.first_seq, state.last_seq, state.messages
