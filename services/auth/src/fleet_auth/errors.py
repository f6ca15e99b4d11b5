"""How auth refuses."""

from fleet_contracts.problems import Problem
from fleet_kit.errors import FleetError


class ApiKeyRequired(FleetError):
    """An API key is required."""

    problem = Problem.API_KEY_REQUIRED


class ApiKeyInvalid(FleetError):
    """The API key is unknown or has been revoked."""

    problem = Problem.API_KEY_INVALID
