"""The queue of each tag: creates its durable consumer as soon as a worker announces the tag."""

import asyncio
import logging
from collections import Counter
from collections.abc import Iterable

import nats.js.errors
from nats.js import api

from fleet_contracts.names import is_tag
from fleet_kit.logs.rate_limit import RateLimitedLog
from fleet_kit.nats.link import NatsLink
from fleet_kit.nats.outages import OUTAGES
from fleet_kit.nats.resources import ensure_consumer
from fleet_kit.nats.streams import work_consumer_config
from fleet_kit.waiting import is_set_within

from ..settings import RunsSettings

logger = logging.getLogger(__name__)

_FIRST_RETRY_SECONDS = 0.25
_LONGEST_RETRY_SECONDS = 5.0
# How often all queues are checked, because one may have been removed.
_LOOK_AGAIN_SECONDS = 30.0


async def queue_of(link: NatsLink, settings: RunsSettings, tag: str) -> api.ConsumerInfo | None:
    """The state of a tag's queue; None if no worker has ever served the tag."""
    try:
        info: api.ConsumerInfo = await link.jetstream.consumer_info(settings.work_stream, settings.work_durable(tag))
    except nats.js.errors.NotFoundError:
        return None
    except OUTAGES as error:
        raise link.unavailable(error) from error
    return info


class Queues:
    """Creates queues for workers, which only announce themselves and wait. An existing queue is not changed."""

    def __init__(self, link: NatsLink, settings: RunsSettings) -> None:
        self._link = link
        self._settings = settings
        self._wanted: set[str] = set()
        # How many queues were requested because this worker announced the tag first.
        self._asked: Counter[str] = Counter()
        self._refusals = RateLimitedLog()
        self._made: set[str] = set()
        self._news = asyncio.Event()
        self._failures = RateLimitedLog()

    @property
    def tags(self) -> set[str]:
        """The tags whose queues exist."""
        return self._made

    def want(self, worker_id: str, tags: Iterable[str]) -> None:
        """Request the queues of a worker's tags. The number is limited, because its record may name any tags."""
        # Called at every heartbeat of every worker: nearly always there is no new tag.
        new = list(dict.fromkeys(tag for tag in tags if tag not in self._wanted and is_tag(tag)))
        if not new:
            return
        settings = self._settings
        room = min(settings.worker_tags_max - self._asked[worker_id], settings.queues_max - len(self._wanted))
        allowed, refused = new[: max(room, 0)], new[max(room, 0) :]
        if refused:
            logger.log(
                self._refusals.level(worker_id),
                "worker %s names %d more tags than queues are made for, such as %s; see PYOCO_WORKER_TAGS_MAX and "
                "PYOCO_QUEUES_MAX",
                worker_id,
                len(refused),
                refused[0],
                extra={"worker_id": worker_id},
            )
        if allowed:
            self._asked[worker_id] += len(allowed)
            self._wanted.update(allowed)
            self._news.set()

    async def look_again(self) -> None:
        """Check all queues again, because NATS may have lost its data. A hook of the link."""
        self._made.clear()
        self._news.set()

    async def run(self, stop: asyncio.Event) -> None:
        delay = _FIRST_RETRY_SECONDS
        while not stop.is_set():
            if not await is_set_within(self._news, _LOOK_AGAIN_SECONDS):
                self._made.clear()
            self._news.clear()
            if await self._make_missing():
                self._failures.recovered()
                delay = _FIRST_RETRY_SECONDS
                continue
            await asyncio.sleep(delay)
            delay = min(2 * delay, _LONGEST_RETRY_SECONDS)
            self._news.set()

    async def _make_missing(self) -> bool:
        """Create the missing queues. A failure does not delay the other queues; False if there was one."""
        all_made = True
        for tag in sorted(self._wanted - self._made):
            config = work_consumer_config(self._settings, self._settings, tag)
            try:
                await ensure_consumer(self._link.jetstream, self._settings.work_stream, config)
            except OUTAGES as error:
                all_made = False
                reason = str(error) or type(error).__name__
                level = self._failures.level(reason)
                logger.log(level, "the queue of tag %s cannot be made yet: %s", tag, reason, extra={"tag": tag})
            else:
                self._made.add(tag)
        return all_made
