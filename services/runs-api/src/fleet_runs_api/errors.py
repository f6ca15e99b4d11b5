"""The errors of the runs service. The docstring of each class is its default message to callers."""

from fleet_contracts.problems import Problem
from fleet_kit.errors import FleetError


class RunNotFound(FleetError):
    """There is no such run; check the run id."""

    problem = Problem.RUN_NOT_FOUND


class SubmissionTooLarge(FleetError):
    """The run's input is too large."""

    problem = Problem.INVALID_REQUEST
    status = 413


class LedgerUnavailable(FleetError):
    """The runs ledger (SQL) is unavailable; try again when it is back."""

    status = 503
    provider = "ledger"
    # True if the connection broke during a transaction, which may have been committed.
    may_be_written = False


class AcceptanceUnknown(FleetError):
    """It is not known whether the run was accepted; look in GET /runs, or send it again with its Idempotency-Key."""

    status = 503


class DiskFull(LedgerUnavailable):
    """No space is left on the data disk; free some and try again."""

    provider = "disk"


class RunNotFinished(FleetError):
    """The run has not ended yet; ask again when it has."""

    problem = Problem.INVALID_REQUEST
    status = 409


class InvalidWorkflow(FleetError):
    """The workflow file cannot be used."""

    problem = Problem.INVALID_REQUEST


class WorkflowTooLarge(FleetError):
    """The workflow file is too large."""

    problem = Problem.WORKFLOW_TOO_LARGE


class IdempotencyConflict(FleetError):
    """The idempotency key was used for another request; use a new key for a new request."""

    problem = Problem.INVALID_REQUEST
    status = 409


class SubmitUndecided(FleetError):
    """The first request with this idempotency key is still under way; try again in a moment."""

    status = 503


class InvalidTimes(FleetError):
    """The times of the run contradict each other."""

    problem = Problem.INVALID_REQUEST
    wrong_fields = ("deadline_at",)


class InvalidParams(FleetError):
    """The params do not fit the schema of the flow."""

    problem = Problem.INVALID_REQUEST
    wrong_fields = ("params",)


class InvalidListQuery(FleetError):
    """The list cannot be asked for in this way."""

    problem = Problem.INVALID_LIST_QUERY
    wrong_fields: tuple[str, ...] = ("since", "until")


class InvalidCursor(InvalidListQuery):
    """The cursor is not valid for this query; start again without it."""

    wrong_fields = ("cursor",)


class DeadLetterNotFound(FleetError):
    """There is no such dead letter; look for its id in GET /dlq."""

    status = 404


class FlowNotFound(FleetError):
    """No live worker offers this flow."""

    status = 404


class LetterNotRequeued(FleetError):
    """The run of this letter cannot be tried again."""

    status = 409
