"""Estimates how long runs take, and from that how many jobs to claim before a runner is free for them."""

from collections.abc import Iterable

# About the longest time that a job that is claimed ahead should wait for its runner.
_AHEAD_SECONDS = 0.05
# More would not be faster, and the number of jobs in hand of all workers together is limited.
_MOST_AHEAD = 8
# The initial mean, and the cap of a measured time: longer runs make no difference.
_LONG_SECONDS = 1.0
_WEIGHT_OF_LATEST = 0.1


class Pace:
    """A moving mean of run times: about thirty short runs make it short, one long run makes it long again."""

    def __init__(self) -> None:
        self._mean_seconds = _LONG_SECONDS

    def note(self, seconds: float) -> None:
        """Record how long a run has kept its runner busy."""
        self._mean_seconds += _WEIGHT_OF_LATEST * (min(seconds, _LONG_SECONDS) - self._mean_seconds)

    def forget(self) -> None:
        """Reset the mean to long runs, after a job that was claimed ahead has waited too long."""
        self._mean_seconds = _LONG_SECONDS

    def jobs_ahead(self, *, runners: int, busy_since: Iterable[float], now: float) -> int:
        """How many jobs to hold beyond the number of runners; a runner that is busy for long counts for none."""
        quick = runners - sum(now - since > _AHEAD_SECONDS for since in busy_since)
        return min(_MOST_AHEAD, int(quick * _AHEAD_SECONDS / self._mean_seconds))
