"""The meta of log lines about failures: the error code, and the fields that it requires."""

from typing import Any

from fleet_contracts.log_events import UNKNOWN, ErrorCode
from fleet_contracts.problems import Problem

from ..errors import FleetError, code_of_status
from ..settings import SettingsError

_PROBLEMS = {problem.err_id: problem for problem in Problem}
# Codes of problems without an HTTP status. All others of these are internal errors: a flow that raises, for example.
_CODES = {
    Problem.FLOW_NOT_FOUND: ErrorCode.NOT_FOUND,
    Problem.INVALID_JOB: ErrorCode.VALIDATION_ERROR,
    Problem.SNAPSHOT_TOO_LARGE: ErrorCode.VALIDATION_ERROR,
    Problem.ORPHAN_RUN: ErrorCode.DEPENDENCY_ERROR,
    Problem.TERMINAL_WRITE_FAILED: ErrorCode.DEPENDENCY_ERROR,
    Problem.IN_PROGRESS_FAILED: ErrorCode.DEPENDENCY_ERROR,
    Problem.DEAD_LETTER_FAILED: ErrorCode.DEPENDENCY_ERROR,
}


# The invalid part, for problems that are not about a request.
_WRONG_FIELDS = {Problem.INVALID_JOB: ["job"], Problem.SNAPSHOT_TOO_LARGE: ["snapshot"]}


def failure_meta(
    error: BaseException | None = None,
    *,
    err_id: str | None = None,
    exc_type: str | None = None,
    resource: str | None = None,
) -> dict[str, Any]:
    """The meta of an exception, else of a problem; `exc_type` names an exception of another process.

    `resource` is the subject of the failure; with NOT_FOUND it is what is missing.
    """
    if isinstance(error, SettingsError):
        return meta_of_code(ErrorCode.VALIDATION_ERROR, fields=list(error.names), detail="a setting cannot be used")
    problem = _PROBLEMS.get(err_id) if err_id else None
    provider, status, reason = "nats", None, None
    fields = [] if problem is None else _WRONG_FIELDS.get(problem, [])
    detail: str | None = None
    if isinstance(error, FleetError):
        problem = error.problem or problem
        provider, status, reason = error.provider, error.http_status, error.meta.get("reason")
        # The docstring of the class, not the message: that may quote the request.
        fields, detail = error.field_names, type(error).__doc__
    elif problem is not None:
        status = problem.http_status
    code = _CODES.get(problem) if problem is not None else None
    if code is None:
        code = ErrorCode(code_of_status(status)) if status is not None else ErrorCode.INTERNAL_ERROR
    return meta_of_code(
        code,
        provider=provider,
        dependency_status=str(reason or "unavailable"),
        retryable=problem.retryable if problem is not None else True,
        exception_type=type(error).__name__ if error is not None else exc_type,
        resource=resource,
        fields=fields,
        detail=problem.message if problem is not None else detail,
    )


def meta_of_code(
    code: ErrorCode,
    *,
    provider: str = UNKNOWN,
    dependency_status: str = "unavailable",
    retryable: bool = True,
    exception_type: str | None = None,
    resource: str | None = None,
    fields: list[str] | None = None,
    detail: str | None = None,
) -> dict[str, Any]:
    """Exactly the fields that the log contract requires for an error code."""
    match code:
        case ErrorCode.VALIDATION_ERROR:
            return {
                "error_code": code,
                "fields": fields or [],
                "detail": detail or Problem.INVALID_REQUEST.message,
            }
        case ErrorCode.NOT_FOUND:
            return {"error_code": code, "resource": resource or UNKNOWN}
        case ErrorCode.DEPENDENCY_ERROR:
            return {
                "error_code": code,
                "provider": provider,
                "dependency_status": dependency_status,
                "retryable": retryable,
            }
        case ErrorCode.INTERNAL_ERROR:
            # The taxonomy declares internal errors not retryable.
            return {"error_code": code, "exception_type": exception_type or UNKNOWN, "retryable": False}
        case _:
            return {"error_code": code}
