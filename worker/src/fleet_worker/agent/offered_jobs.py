"""Jobs that other workers have declined and that this one may take as soon as a runner is free."""

from ..job.delivery import Delivery

_MOST = 100


class OfferedJobs:
    """Offers are short and are repeated for as long as they hold. They go before the queue, which has later jobs."""

    def __init__(self) -> None:
        # By the job's sequence in the stream: the delivery, and until when it may be taken.
        self._offers: dict[int, tuple[Delivery, float]] = {}

    def note(self, delivery: Delivery, *, until: float) -> None:
        if len(self._offers) < _MOST or delivery.sequence in self._offers:
            self._offers[delivery.sequence] = (delivery, until)

    def take(self, *, now: float) -> Delivery | None:
        """The job that was queued first, of those that still may be taken."""
        self._offers = {sequence: offer for sequence, offer in self._offers.items() if offer[1] > now}
        if not self._offers:
            return None
        return self._offers.pop(min(self._offers))[0]
