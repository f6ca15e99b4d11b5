"""Jobs that other workers have declined: offers that wait for a runner, and runners that wait for such a job."""

import asyncio
import time
from collections.abc import Callable

from fleet_contracts.control import JOB_REFUSED, JOB_WANTED
from fleet_contracts.declined import Declined
from fleet_kit.nats.pull import ack_tokens

_MOST = 100
# How long a runner is kept for a job that this worker has said it has room for.
_KEPT_SECONDS = 0.5


class OfferedJobs:
    """Offers are short and are repeated for as long as they hold. They go before the queue, which has later jobs."""

    def __init__(self, on_released: Callable[[], None]) -> None:
        """`on_released` is called when a runner may have been kept in vain."""
        self._on_released = on_released
        # By the job's sequence in the stream: the request to send back, and until when that may be done.
        self._offers: dict[int, tuple[Declined, float]] = {}
        # Until when a runner is kept for a job that is about to come.
        self._expected: dict[int, float] = {}

    def answer(self, offer: Declined, *, seconds: float, has_room: bool) -> bytes:
        """`seconds`: how long the offer of a job that there is no room for holds."""
        if has_room:
            self._expect(_sequence_of(offer.ack_subject))
            return JOB_WANTED
        self._drop_expired()
        if len(self._offers) < _MOST:
            self._offers[_sequence_of(offer.ack_subject)] = offer, time.monotonic() + seconds
        return JOB_REFUSED

    def take(self) -> Declined | None:
        """Keep a runner for the job that was queued first, of those whose offers still hold; what to send for it."""
        self._drop_expired()
        if not self._offers:
            return None
        sequence = min(self._offers)
        self._expect(sequence)
        return self._offers.pop(sequence)[0]

    def forget(self, ack_subject: str) -> None:
        """The job has come, or is offered anew."""
        self._offers.pop(_sequence_of(ack_subject), None)
        self._expected.pop(_sequence_of(ack_subject), None)

    @property
    def runners_kept(self) -> int:
        self._drop_expired()
        return len(self._expected)

    def _drop_expired(self) -> None:
        now = time.monotonic()
        self._offers = {sequence: offer for sequence, offer in self._offers.items() if offer[1] > now}
        self._expected = {sequence: until for sequence, until in self._expected.items() if until > now}

    def _expect(self, sequence: int) -> None:
        self._expected[sequence] = time.monotonic() + _KEPT_SECONDS
        asyncio.get_running_loop().call_later(1.1 * _KEPT_SECONDS, self._on_released)


def _sequence_of(ack_subject: str) -> int:
    return int(ack_tokens(ack_subject)[3])
