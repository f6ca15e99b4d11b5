"""Shared by the routes: the idempotency key of a request, and responses of JSON that is already encoded."""

import re

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response

from ..accept.idempotency import KEY_PATTERN


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
