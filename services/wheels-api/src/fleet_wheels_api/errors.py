"""The errors of wheels-api."""

from fleet_contracts.problems import Problem
from fleet_kit.errors import FleetError


class InvalidUpload(FleetError):
    """The upload cannot be used."""

    problem = Problem.INVALID_REQUEST

    def __init__(self, field: str, reason: str) -> None:
        field = shown(field)
        super().__init__(f"{field}: {reason}", fields=[{"field": field, "reason": reason}])


class WheelTooLarge(FleetError):
    """The wheel is too large."""

    problem = Problem.INVALID_REQUEST
    status = 413


class UploadAbandoned(FleetError):
    """The client went away before the upload was complete."""

    problem = Problem.INVALID_REQUEST
    status = 400
    wrong_fields = ("body",)


class UploadNotKept(FleetError):
    """The upload could not be kept in a temporary file."""

    status = 503


class VersionNotNewer(FleetError):
    """The wheel's version is not newer than the registered one; raise the version and try again."""

    problem = Problem.WHEEL_VERSION_REFUSED


class WheelNotFound(FleetError):
    """There is no such wheel; look for its name in GET /wheels."""

    problem = Problem.WHEEL_NOT_FOUND


class RegistryBusy(FleetError):
    """Too many wheels are being registered at once; try again."""

    problem = Problem.NATS_UNAVAILABLE


def shown(text: str) -> str:
    """Text from a request for use in a message: ASCII, and cut to 120 characters."""
    plain = text.encode("ascii", "backslashreplace").decode()
    return plain if len(plain) <= 120 else plain[:120] + "…"
