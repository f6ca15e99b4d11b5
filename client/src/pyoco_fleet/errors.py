"""What can go wrong: one exception for each kind of trouble, with the server's own sentence."""

from collections.abc import Mapping
from typing import Any

_NOTHING_ANSWERS = "ERR-PYOCO-0001"


class FleetError(Exception):
    """The fleet did not do what it was asked."""

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        err_id: str | None = None,
        request_id: str | None = None,
        status: int | None = None,
        retryable: bool = False,
        retry_after: float | None = None,
        meta: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.err_id = err_id
        self.request_id = request_id
        self.status = status
        self.retryable = retryable
        # Seconds, if the server said how long to wait.
        self.retry_after = retry_after
        # What else the server said: fields, missing_scope, limit_bytes, ...
        self.meta = dict(meta or {})

    def __str__(self) -> str:
        known = [self.err_id, f"request {self.request_id}" if self.request_id else None]
        said = ", ".join(word for word in known if word)
        return f"{self.message} ({said})" if said else self.message


class Unreachable(FleetError):
    """Nothing answers at the address, or the connection broke before there was an answer."""

    def __init__(self, message: str, *, sent: bool = True) -> None:
        super().__init__(message, code="UNREACHABLE", err_id=_NOTHING_ANSWERS, retryable=True)
        # False: the request certainly did not reach the server, so that it may be repeated whatever it is.
        self.sent = sent


class BadAnswer(FleetError):
    """The answer is not one of a fleet."""


class BadRequest(FleetError):
    """The request is wrong: sending it again does not help."""


class NotAuthenticated(FleetError):
    """A key is needed and none was sent."""


class Forbidden(FleetError):
    """The key is unknown, revoked or expired, or may not do this."""


class NotFound(FleetError):
    """There is no such thing, or it belongs to another tenant."""


class Conflict(FleetError):
    """What is there already does not allow it."""


class Unavailable(FleetError):
    """A part of the fleet is away or restarting."""


class WaitTimeout(FleetError, TimeoutError):
    """What was waited for has not happened in time; it goes on all the same."""


class RunEnded(FleetError):
    """A run has ended without a result."""

    def __init__(self, message: str, *, run_id: str = "", snapshot: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.run_id = run_id
        # The run as it ended, with the records of its tasks.
        self.run = dict(snapshot or {})


class FlowFailed(RunEnded):
    """The flow of a run failed."""

    def __init__(
        self,
        message: str,
        *,
        run_id: str = "",
        task: str | None = None,
        error: str | None = None,
        reason: str | None = None,
        traceback: str | None = None,
        snapshot: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message, run_id=run_id, snapshot=snapshot)
        self.task = task
        self.error = error
        self.reason = reason
        # As the worker wrote it. (`__traceback__` is that of this process.)
        self.traceback = traceback
        if traceback:
            self.add_note(f"On the worker:\n{traceback.rstrip()}")


class RunCancelled(RunEnded):
    """The run was cancelled."""


class ResultTooLarge(RunEnded):
    """The run has completed, but its result was too large to be kept."""


_OF_STATUS: Mapping[int, type[FleetError]] = {
    400: BadRequest,
    401: NotAuthenticated,
    403: Forbidden,
    404: NotFound,
    405: BadRequest,
    409: Conflict,
    413: BadRequest,
    415: BadRequest,
    416: BadRequest,
    421: Forbidden,
    422: BadRequest,
    429: Unavailable,
    431: BadRequest,
    502: Unavailable,
    503: Unavailable,
    504: Unavailable,
}


def of_status(status: int) -> type[FleetError]:
    return _OF_STATUS.get(status, FleetError)
