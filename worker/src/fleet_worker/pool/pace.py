"""How long runs take lately, and so how many jobs are worth claiming before a runner is free for them."""

from collections.abc import Iterable

# A job that is claimed ahead should wait for its runner about so long at most.
_AHEAD_SECONDS = 0.05
# More would not be faster, and the jobs that may be in hand of all workers together are limited.
_MOST_AHEAD = 8
# Unknown, or so long that it makes no difference how long.
_LONG_SECONDS = 1.0
_WEIGHT_OF_LATEST = 0.1


class Pace:
    """A moving mean: some thirty short runs make it short, one long run makes it long again."""

    def __init__(self) -> None:
        self._mean_seconds = _LONG_SECONDS

    def note(self, seconds: float) -> None:
        """A run has kept its runner for so long."""
        self._mean_seconds += _WEIGHT_OF_LATEST * (min(seconds, _LONG_SECONDS) - self._mean_seconds)

    def forget(self) -> None:
        """A job that was claimed ahead had to wait too long: from now on runs are long until they have been short."""
        self._mean_seconds = _LONG_SECONDS

    def jobs_ahead(self, *, runners: int, busy_since: Iterable[float], now: float) -> int:
        """How many jobs more than runners are worth having; a runner that is busy for long will not take any."""
        quick = runners - sum(now - since > _AHEAD_SECONDS for since in busy_since)
        return min(_MOST_AHEAD, int(quick * _AHEAD_SECONDS / self._mean_seconds))
