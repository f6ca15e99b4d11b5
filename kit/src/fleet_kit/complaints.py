"""What a loop says of something that keeps failing: at once, then now and then, however often it meets with it."""

import logging
import time
from collections.abc import Callable

from .errors import FleetError
from .logging import failure_fields

_REPEAT_SECONDS = 30.0


class Complaints:
    """While something is away the same complaint comes several times a second."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._told: dict[str, float] = {}

    def level(self, text: str, news: int = logging.WARNING) -> int:
        """Of `news` if this was not said for a while, else DEBUG."""
        now = self._clock()
        self._told = {said: at for said, at in self._told.items() if now - at < _REPEAT_SECONDS}
        if text in self._told:
            return logging.DEBUG
        self._told[text] = now
        return news

    def tell(self, logger: logging.Logger, what: str, error: BaseException) -> None:
        """What has come of the error. One with a name is told in a line; only of another the traceback is news."""
        is_surprise = not isinstance(error, FleetError)
        level = self.level(f"{what}: {type(error).__name__}", logging.ERROR if is_surprise else logging.WARNING)
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

    def end(self) -> None:
        """It works again: the next complaint is news."""
        self._told.clear()


def _why(error: BaseException) -> str:
    if not isinstance(error, FleetError):
        return type(error).__name__
    reason = str(error.meta.get("reason", ""))
    return error.message if reason in error.message else f"{error.message} ({reason})"
