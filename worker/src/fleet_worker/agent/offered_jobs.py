"""Jobs that other workers have declined: offers that wait for a runner, and runners that wait for such a job."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

from fleet_contracts.control import JOB_REFUSED, JOB_WANTED, Control
from fleet_kit.nats.pull import ack_tokens

_MOST = 100
# How long a runner is kept for a job that this worker has said it has room for.
_KEPT_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Offer:
    # The job's sequence in the stream.
    sequence: int
    # Where the offer is answered, and until when, by the monotonic clock.
    reply: str
    until: float

    @classmethod
    def of(cls, about: Control, ack_subject: str, reply: str) -> Self:
        return cls(int(ack_tokens(ack_subject)[3]), reply, time.monotonic() + (about.offered_seconds or 0.0))


class OfferedJobs:
    """Offers are short and are repeated for as long as they hold. They go before the queue, which has later jobs."""

    def __init__(self, on_released: Callable[[], None]) -> None:
        """`on_released` is called when a runner may have been kept in vain."""
        self._on_released = on_released
        self._offers: dict[int, Offer] = {}
        # Until when a runner is kept for a job that is about to come, by the job's sequence.
        self._expected: dict[int, float] = {}

    def answer(self, offer: Offer, *, has_room: bool) -> bytes | None:
        """None: it is answered when a runner is free."""
        if has_room:
            self._expect(offer)
            return JOB_WANTED
        self._drop_expired()
        if offer.until <= time.monotonic() or len(self._offers) >= _MOST:
            return JOB_REFUSED
        self._offers[offer.sequence] = offer
        return None

    def take(self) -> Offer | None:
        """Keep a runner for the job that was queued first, of those whose offers may still be answered."""
        self._drop_expired()
        if not self._offers:
            return None
        offer = self._offers.pop(min(self._offers))
        self._expect(offer)
        return offer

    def forget(self, sequence: int) -> None:
        """The job has come, or is offered anew."""
        self._offers.pop(sequence, None)
        self._expected.pop(sequence, None)

    @property
    def runners_kept(self) -> int:
        self._drop_expired()
        return len(self._expected)

    def _drop_expired(self) -> None:
        now = time.monotonic()
        self._offers = {sequence: offer for sequence, offer in self._offers.items() if offer.until > now}
        self._expected = {sequence: until for sequence, until in self._expected.items() if until > now}

    def _expect(self, offer: Offer) -> None:
        self._expected[offer.sequence] = time.monotonic() + _KEPT_SECONDS
        asyncio.get_running_loop().call_later(1.1 * _KEPT_SECONDS, self._on_released)
