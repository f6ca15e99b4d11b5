"""The history of the registry: who uploaded and deleted what, the latest first."""

import logging
from dataclasses import dataclass

from fleet_contracts.messages import MalformedMessage
from fleet_contracts.names import kv_stream, kv_subject
from fleet_contracts.wheel import WheelAction, WheelEvent
from fleet_kit.nats.link import NatsLink, WrongRevision
from fleet_kit.nats.messages import messages_of
from fleet_kit.nats.stores.kv import Bucket

logger = logging.getLogger(__name__)

# Entries that are read at once, and for one page at most: a filter that matches nothing must end.
_WINDOW = 500
_MOST_LOOKED_AT = 20_000


@dataclass(frozen=True, slots=True)
class Page:
    events: list[WheelEvent]
    # Where the next page continues; None at the end of the history.
    before: int | None


class History:
    """Keeps one message per event, never changed; the sequence is the order in which they were recorded.

    A page is read backwards by sequence, with direct gets; nothing is kept in memory.
    """

    def __init__(self, link: NatsLink, bucket: str) -> None:
        self._link = link
        self._bucket = Bucket(link, bucket)
        self._stream = kv_stream(bucket)
        self._subject = kv_subject(bucket, ">")

    async def record(self, event: WheelEvent) -> None:
        """Record an event. Idempotent: a repeated call with the same event id writes nothing."""
        try:
            await self._bucket.update(event.event_id, event.encode(), revision=0)
        except WrongRevision:
            logger.debug("the event %s is recorded already", event.event_id)

    async def page(
        self,
        *,
        limit: int,
        before: int | None = None,
        wheel_name: str | None = None,
        action: WheelAction | None = None,
    ) -> Page:
        """The latest events, or those before the cursor of an earlier page."""
        state = (await self._link.stream_info(self._stream)).state
        top = state.last_seq if before is None else min(before - 1, state.last_seq)
        first = max(state.first_seq, 1)
        window = _WINDOW if wheel_name or action else min(limit, _WINDOW)
        events: list[WheelEvent] = []
        looked_at = 0
        while top >= first and looked_at < _MOST_LOOKED_AT:
            bottom = max(first, top - window + 1)
            for sequence, event in reversed(await self._between(bottom, top)):
                fits = wheel_name in (None, event.wheel_name) and action in (None, event.action)
                if fits:
                    events.append(event)
                if len(events) == limit:
                    return Page(events, sequence if sequence > first else None)
            looked_at += top - bottom + 1
            top = bottom - 1
        return Page(events, top + 1 if top >= first else None)

    async def _between(self, bottom: int, top: int) -> list[tuple[int, WheelEvent]]:
        found: list[tuple[int, WheelEvent]] = []
        after = bottom - 1
        while after < top:
            messages = await messages_of(self._link, self._stream, self._subject, after=after, limit=top - after)
            if not messages:
                break
            after = messages[-1].sequence
            for message in messages:
                if message.sequence <= top and message.data:
                    try:
                        found.append((message.sequence, WheelEvent.decode(message.data)))
                    except MalformedMessage as error:
                        logger.warning("an entry of the wheel history is not readable: %s", error)
        return found
