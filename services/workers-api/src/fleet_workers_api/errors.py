"""The errors of workers-api."""

from fleet_contracts.problems import Problem
from fleet_kit.errors import FleetError, NatsUnavailable


class WorkerNotFound(FleetError):
    """There is no such worker; GET /workers?scope=all&include_hidden=true lists all there are."""

    problem = Problem.WORKER_NOT_FOUND


class RecordContended(NatsUnavailable):
    """The worker's record is written by others all the time; try again."""
