"""Shared by the routes: idempotency keys, responses of encoded JSON, and the descriptions of both."""

import re
from typing import Any

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response

from fleet_kit.http.openapi import refusals

from ..accept.idempotency import KEY_PATTERN
from ..errors import IdempotencyConflict, RunNotFound, SubmissionTooLarge

# The `responses` of routes of one run, and of those that submit.
NO_RUN = refusals(RunNotFound)
NOT_SUBMITTED = refusals(IdempotencyConflict, SubmissionTooLarge)

# The `openapi_extra` of routes that submit: the header is read by hand.
IDEMPOTENCY_KEY: dict[str, Any] = {
    "parameters": [
        {
            "name": "Idempotency-Key",
            "in": "header",
            "required": False,
            "description": "a submit that is repeated with its key gets its first answer",
            "schema": {"type": "string", "pattern": f"^{KEY_PATTERN}$"},
        }
    ]
}


def idempotency_key_of(request: Request) -> str | None:
    """The key that the caller gave, if it did."""
    key = request.headers.get("idempotency-key")
    if key is not None and re.fullmatch(KEY_PATTERN, key) is None:
        message = "must have 1 to 255 printable ASCII characters, such as a UUID or orders:4711:1760000000000"
        raise RequestValidationError(
            [{"type": "idempotency_key", "loc": ("header", "Idempotency-Key"), "msg": message}]
        )
    return key


def json_answer(body: bytes) -> Response:
    return Response(body, media_type="application/json")
