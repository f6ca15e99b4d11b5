"""The base class of all named errors, with their HTTP status and error body."""

from typing import Any

from fleet_contracts.problems import Problem

# The error taxonomy of the contracts document, by HTTP status.
_CODES = {
    400: "VALIDATION_ERROR",
    401: "UNAUTHENTICATED",
    403: "FORBIDDEN",
    404: "NOT_FOUND",
    405: "METHOD_NOT_ALLOWED",
    409: "CONFLICT",
    413: "PAYLOAD_TOO_LARGE",
    422: "VALIDATION_ERROR",
    429: "RATE_LIMITED",
    502: "DEPENDENCY_ERROR",
    503: "DEPENDENCY_ERROR",
    504: "DEPENDENCY_ERROR",
}


def code_of_status(status: int) -> str:
    return _CODES.get(status, "INTERNAL_ERROR" if status >= 500 else "VALIDATION_ERROR")


def envelope(
    *, status: int, message: str, request_id: str | None, problem: Problem | None = None, **meta: Any
) -> dict[str, Any]:
    """The error body of every answer; `detail` repeats the message for clients that expect it there."""
    identity: dict[str, Any] = {"request_id": request_id}
    if problem is not None:
        identity |= {"err_id": problem.err_id, "msg_id": problem.msg_id, "retryable": problem.retryable}
    return {
        "ok": False,
        "error": {"code": code_of_status(status), "message": message, "meta": identity | meta},
        "detail": message,
    }


class FleetError(Exception):
    """Something went wrong inside the fleet."""

    problem: Problem | None = None
    status: int | None = None
    # The dependency that failed, if one did.
    provider = "nats"
    # The invalid fields of the request, unless `fields` of the meta names them.
    wrong_fields: tuple[str, ...] = ()

    def __init__(self, message: str | None = None, **meta: Any) -> None:
        self.message = message or (self.__doc__ or "").strip()
        self.meta = meta
        super().__init__(self.message)

    @classmethod
    def status_of_class(cls) -> int:
        """The HTTP status that answers every error of this class."""
        if cls.status is not None:
            return cls.status
        if cls.problem is not None and cls.problem.http_status is not None:
            return cls.problem.http_status
        return 500

    @property
    def http_status(self) -> int:
        return self.status_of_class()

    @property
    def field_names(self) -> list[str]:
        """Names of the invalid fields, never their values: those belong to the caller only."""
        named = [str(fault["field"]).partition(".")[0] for fault in self.meta.get("fields", ())]
        return list(dict.fromkeys(named or self.wrong_fields))


class NatsUnavailable(FleetError):
    """NATS is unavailable; try again when it is back."""

    problem = Problem.NATS_UNAVAILABLE


class IdentityMissing(FleetError):
    """The request carries no identity; send it through the gateway."""

    problem = Problem.API_KEY_REQUIRED


class NotFromGateway(FleetError):
    """The request did not come through the gateway; send it there."""

    problem = Problem.API_KEY_REQUIRED


class UnsupportedContentType(FleetError):
    """The body has a content type that is not read here."""

    problem = Problem.INVALID_REQUEST
    status = 415


class ScopeMissing(FleetError):
    """The API key may not do this."""

    problem = Problem.API_KEY_INVALID
