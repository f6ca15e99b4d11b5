"""The errors of auth."""

from fleet_contracts.problems import Problem
from fleet_kit.errors import FleetError


class ApiKeyRequired(FleetError):
    """An API key is required."""

    problem = Problem.API_KEY_REQUIRED


class ApiKeyInvalid(FleetError):
    """The API key is unknown, revoked or expired; use another one."""

    # One sentence for all cases: a caller that tries keys must not learn which ones existed.
    problem = Problem.API_KEY_INVALID


class KeysNeedAuthentication(FleetError):
    """API keys are not managed over HTTP while authentication is off; use the command pyoco-server-admin api-key."""

    problem = Problem.API_KEY_INVALID


class KeyNotFound(FleetError):
    """There is no API key with this id."""

    status = 404


class KeyContested(FleetError):
    """The API key is being changed by somebody else; try again."""

    status = 503
