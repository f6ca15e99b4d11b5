"""Bodies of requests and answers: JSON that is checked as it comes in and written once as it goes out."""

import re
from typing import Any, TypeVar

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from pydantic import BaseModel, ValidationError
from pydantic_core import from_json

from ..idempotency import KEY_PATTERN

M = TypeVar("M", bound=BaseModel)


def parse(model: type[M], body: bytes) -> M:
    try:
        return model.model_validate(from_json(body, allow_inf_nan=False))
    except ValidationError as error:
        raise RequestValidationError(error.errors(include_url=False, include_context=False)) from error
    except ValueError as error:
        detail: dict[str, Any] = {"type": "json_invalid", "loc": ("body",), "msg": f"not valid JSON: {error}"}
        raise RequestValidationError([detail]) from error


def idempotency_key_of(request: Request) -> str | None:
    """The key that the caller gave, if it did."""
    key = request.headers.get("idempotency-key")
    if key is not None and re.fullmatch(KEY_PATTERN, key) is None:
        message = "must be <domain>:<entity-id>:<epoch-ms>, such as orders:4711:1760000000000"
        raise RequestValidationError(
            [{"type": "idempotency_key", "loc": ("header", "Idempotency-Key"), "msg": message}]
        )
    return key


def json_answer(body: bytes, headers: dict[str, str] | None = None) -> Response:
    return Response(body, media_type="application/json", headers=headers)
