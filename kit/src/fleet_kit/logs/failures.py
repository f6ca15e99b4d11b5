"""What a line about a failure tells of it: its code in the taxonomy, and what that code asks for."""

from typing import Any

from fleet_contracts.log_events import UNKNOWN, ErrorCode
from fleet_contracts.problems import Problem

from ..errors import FleetError, code_of_status
from ..settings import SettingsError

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


# What is wrong where a problem is about no request.
_WRONG_FIELDS = {Problem.INVALID_JOB: ["job"], Problem.SNAPSHOT_TOO_LARGE: ["snapshot"]}


def failure_meta(
    error: BaseException | None = None,
    *,
    err_id: str | None = None,
    exc_type: str | None = None,
    resource: str | None = None,
) -> dict[str, Any]:
    """From the exception, else from the problem; `exc_type` names an exception of another process.

    `resource` is what the failure is about: if something is not there, it is that.
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
        # Not its own words: they may quote what was sent.
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
    """What the contract wants to be told about a failure of this kind, and nothing else."""
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
            # Whoever has failed for no known reason is not to be asked again: that is the taxonomy's word.
            return {"error_code": code, "exception_type": exception_type or UNKNOWN, "retryable": False}
        case _:
            return {"error_code": code}
