"""JSON bodies of requests: cheap checks first, then parsing; large bodies are read beside the event loop."""

import asyncio
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict, ValidationError, model_validator
from pydantic_core import PydanticCustomError, from_json

from ..errors import UnsupportedContentType
from .unknown_names import about_unknown

M = TypeVar("M", bound=BaseModel)

JSON = "application/json"
FORM = "multipart/form-data"

# Members of objects and items of lists, in all. The parser holds the interpreter until it has all of them: 25 ms for
# so many members, 1,200 ms for the 1.4 million that 15 MB can have.
MOST_VALUES = 100_000
_LARGE_BYTES = 64 * 1024
_WINDOW_BYTES = 64 * 1024

# One at a time: however many large bodies come at once, the event loop competes with one thread for the interpreter.
_reader = ThreadPoolExecutor(max_workers=1, thread_name_prefix="large-body")


class Body(BaseModel):
    """A JSON object that knows all its keys: others are refused before any value is looked at."""

    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown_keys(cls, value: Any) -> Any:
        known = cls.model_fields
        if isinstance(value, Mapping) and not value.keys() <= known.keys():
            unknown = [str(key) for key in value if key not in known]
            raise PydanticCustomError("unknown_key", "{reason}", {"reason": about_unknown("key", unknown, known)})
        return value


async def read(model: type[M], request: Request, *, or_else: M | None = None) -> M:
    """The body of the request as a model. `or_else` is for a request without a body."""
    body = await request.body()
    if or_else is not None and not body:
        return or_else
    if body:
        require_content_type(request, JSON)
    if len(body) <= _LARGE_BYTES:
        return parse(model, body)
    return await asyncio.get_running_loop().run_in_executor(_reader, parse, model, body)


def require_content_type(request: Request, wanted: str) -> None:
    """Refuse a body of another type: a page of another origin can send some types without asking, but never JSON."""
    given, _, _ = request.headers.get("content-type", "").partition(";")
    if given.strip().lower() != wanted:
        raise UnsupportedContentType(f"send the body as {wanted}, and say so in the header Content-Type")


def parse(model: type[M], body: bytes) -> M:
    if not _has_few_values(body):
        raise _refusal("too_many_values", f"more than {MOST_VALUES:,} values; send fewer at a time")
    try:
        return model.model_validate(from_json(body, allow_inf_nan=False))
    except ValidationError as error:
        # The library would name our class.
        reasons = [
            {**reason, "msg": "Input should be an object"} if reason["type"] == "model_type" else reason
            for reason in error.errors(include_url=False, include_context=False, include_input=False)
        ]
        raise RequestValidationError(reasons) from error
    except ValueError as error:
        raise _refusal("json_invalid", f"not valid JSON: {error}") from error


def _refusal(kind: str, reason: str) -> RequestValidationError:
    detail: dict[str, Any] = {"type": kind, "loc": ("body",), "msg": reason}
    return RequestValidationError([detail])


def _has_few_values(body: bytes) -> bool:
    """Before every value but the first stands one of these signs; those in texts count only if there are too many."""
    if _count_signs(body) <= MOST_VALUES:
        return True
    signs, in_text, escape = 0, False, b""
    for start in range(0, len(body), _WINDOW_BYTES):
        window = (escape + body[start : start + _WINDOW_BYTES]).replace(rb"\\", b"")
        # A backslash at the end belongs to the first character of the next window.
        escape = window[-1:] if window.endswith(b"\\") else b""
        parts = window.removesuffix(b"\\").replace(rb"\"", b"").split(b'"')
        signs += _count_signs(b"".join(parts[in_text::2]))
        if signs > MOST_VALUES:
            return False
        in_text ^= len(parts) % 2 == 0
    return True


def _count_signs(text: bytes) -> int:
    return text.count(b",") + text.count(b"[") + text.count(b"{")
