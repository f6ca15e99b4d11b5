"""What a line about a failure tells of it: its code in the taxonomy, and what that code asks for."""

from typing import Any

from fleet_contracts.log_events import ErrorCode
from fleet_contracts.problems import Problem

from .errors import FleetError, code_of_status

_PROBLEMS = {problem.err_id: problem for problem in Problem}
# Problems that no HTTP status tells the code of. Any other is an internal error: a flow that raises, for example.
_CODES = {
    Problem.FLOW_NOT_FOUND: ErrorCode.NOT_FOUND,
    Problem.INVALID_JOB: ErrorCode.VALIDATION_ERROR,
    Problem.SNAPSHOT_TOO_LARGE: ErrorCode.VALIDATION_ERROR,
    Problem.ORPHAN_RUN: ErrorCode.DEPENDENCY_ERROR,
    Problem.TERMINAL_WRITE_FAILED: ErrorCode.DEPENDENCY_ERROR,
    Problem.IN_PROGRESS_FAILED: ErrorCode.DEPENDENCY_ERROR,
    Problem.DEAD_LETTER_FAILED: ErrorCode.DEPENDENCY_ERROR,
}


def failure_meta(
    error: BaseException | None = None, *, err_id: str | None = None, exc_type: str | None = None
) -> dict[str, Any]:
    """From the exception, else from the problem; `exc_type` names an exception of another process."""
    problem = _PROBLEMS.get(err_id) if err_id else None
    provider, status, reason = "nats", None, None
    if isinstance(error, FleetError):
        problem = error.problem or problem
        provider, status, reason = error.provider, error.http_status, error.meta.get("reason")
    elif problem is not None:
        status = problem.http_status
    code = _CODES.get(problem) if problem is not None else None
    if code is None:
        code = ErrorCode(code_of_status(status)) if status is not None else ErrorCode.INTERNAL_ERROR
    return meta_of_code(
        code,
        provider=provider,
        dependency_status=str(reason or "unavailable"),
        retryable=problem.retryable if problem is not None else None,
        exception_type=type(error).__name__ if error is not None else exc_type,
    )


def meta_of_code(
    code: ErrorCode,
    *,
    provider: str,
    dependency_status: str = "unavailable",
    retryable: bool | None = None,
    exception_type: str | None = None,
) -> dict[str, Any]:
    match code:
        case ErrorCode.DEPENDENCY_ERROR:
            may_retry = True if retryable is None else retryable
            return {
                "error_code": code,
                "provider": provider,
                "dependency_status": dependency_status,
                "retryable": may_retry,
            }
        case ErrorCode.INTERNAL_ERROR:
            return {"error_code": code, "exception_type": exception_type, "retryable": bool(retryable)}
        case _:
            return {"error_code": code}
