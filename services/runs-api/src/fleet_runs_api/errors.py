"""What can go wrong with runs."""

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


class RunNotFinished(FleetError):
    """The run has not ended yet; ask again when it has."""

    problem = Problem.INVALID_REQUEST
    status = 409


class RunNotReady(FleetError):
    """The run is being put on the queue again; try again in a moment."""

    status = 503


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
