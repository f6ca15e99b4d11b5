"""The errors that mean an outage of NATS, and a full disk."""

from typing import Any

import nats.errors
import nats.js.errors

from ..errors import NatsUnavailable

# Errors of the client library when the server, the network or JetStream is unavailable.
OUTAGES = (
    nats.errors.Error,
    nats.js.errors.ServiceUnavailableError,
    nats.js.errors.NoStreamResponseError,
    OSError,  # timeouts included
)

# JetStream's codes for a server whose resources are used up.
_NO_RESOURCES = (10023, 10047)


class NoSpaceLeft(NatsUnavailable):
    """No space is left on the disk of NATS; free some and try again."""

    @staticmethod
    def is_meant_by(error: dict[str, Any]) -> bool:
        return error.get("err_code") in _NO_RESOURCES or "no space left" in error.get("description", "")
