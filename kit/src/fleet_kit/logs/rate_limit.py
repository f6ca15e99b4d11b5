"""Rate-limited logging for loops: a failure is logged at once, its repetitions every 30 seconds."""

import logging
import time
from collections.abc import Callable

from ..errors import FleetError
from .setup import failure_fields

_REPEAT_SECONDS = 30.0


class RateLimitedLog:
    """Rate limit of one loop, whose dependency may be down for minutes while it retries several times a second."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._logged_at: dict[str, float] = {}

    def level(self, text: str, news: int = logging.WARNING) -> int:
        """`news` if this text was not logged in the last 30 seconds, else DEBUG."""
        now = self._clock()
        self._logged_at = {text: at for text, at in self._logged_at.items() if now - at < _REPEAT_SECONDS}
        if text in self._logged_at:
            return logging.DEBUG
        self._logged_at[text] = now
        return news

    def log(self, logger: logging.Logger, what: str, error: BaseException) -> None:
        """Log the failure. A FleetError takes one line; an unexpected error brings its traceback."""
        is_unexpected = not isinstance(error, FleetError)
        level = self.level(f"{what}: {type(error).__name__}", logging.ERROR if is_unexpected else logging.WARNING)
        is_traced = level == logging.ERROR
        logger.log(
            level,
            "%s: %s",
            what,
            _why(error),
            exc_info=error if is_traced else None,
            extra=None if is_traced else failure_fields(error),
            stacklevel=2,
        )

    def recovered(self) -> None:
        """Reset after a success: the next failure is logged at once."""
        self._logged_at.clear()


def _why(error: BaseException) -> str:
    if not isinstance(error, FleetError):
        return type(error).__name__
    reason = str(error.meta.get("reason", ""))
    return error.message if reason in error.message else f"{error.message} ({reason})"
