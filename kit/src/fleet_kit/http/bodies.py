"""JSON bodies of requests: cheap checks first, then parsing; large bodies are parsed off the event loop."""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from typing import Any, ParamSpec, TypeVar

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict, ValidationError, model_validator
from pydantic_core import PydanticCustomError, from_json

from ..errors import UnsupportedContentType
from .unknown_names import about_unknown

M = TypeVar("M", bound=BaseModel)
T = TypeVar("T")
P = ParamSpec("P")

JSON = "application/json"
FORM = "multipart/form-data"

# Members of objects and items of lists, in total. The parser holds the GIL throughout: 25 ms for this many, 1,200 ms
# for the 1.4 million that 15 MB can have.
MOST_VALUES = 100_000
# The same for the digits of numbers: the cost of a number grows faster than its length.
MOST_DIGITS = 2_000_000
LONGEST_NUMBER = 100
LARGE_BYTES = 64 * 1024
_WINDOW_BYTES = 64 * 1024
_DIGITS = b"0123456789"
_TO_ZEROS = bytes.maketrans(_DIGITS, b"0" * len(_DIGITS))
_TOO_LONG = b"0" * (LONGEST_NUMBER + 1)

# One thread: however many large bodies arrive at once, a single thread competes with the event loop for the GIL.
_reader = ThreadPoolExecutor(max_workers=1, thread_name_prefix="large-body")


class Body(BaseModel):
    """A JSON object with a fixed set of keys: unknown ones are refused before any value is validated."""

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
    if len(body) <= LARGE_BYTES:
        return parse(model, body)
    return await beside_the_loop(parse, model, body)


async def beside_the_loop(work: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Run work on a large body in the thread that parses large bodies."""
    inside = partial(copy_context().run, partial(work, *args, **kwargs))
    return await asyncio.get_running_loop().run_in_executor(_reader, inside)


def require_content_type(request: Request, wanted: str) -> None:
    """Refuse another content type, against CSRF: a page of another origin cannot send JSON without a preflight."""
    given, _, _ = request.headers.get("content-type", "").partition(";")
    if given.strip().lower() != wanted:
        raise UnsupportedContentType(f"send the body as {wanted}, and say so in the header Content-Type")


def parse(model: type[M], body: bytes) -> M:
    _refuse_costly(body)
    try:
        return model.model_validate(from_json(body, allow_inf_nan=False))
    except ValidationError as error:
        # pydantic's message would name our class.
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


def _refuse_costly(body: bytes) -> None:
    """Refuse a body that is costly to parse. String contents are left out only if the count with them is too high."""
    if _cost_fault(_windows(body)) and (fault := _cost_fault(_outside_texts(body))):
        raise _refusal(*fault)


def _cost_fault(pieces: Iterable[bytes]) -> tuple[str, str] | None:
    signs = digits = 0
    end = b""
    for piece in pieces:
        # One of these precedes every value but the first.
        signs += piece.count(b",") + piece.count(b"[") + piece.count(b"{")
        digits += len(piece) - len(piece.translate(None, _DIGITS))
        zeros = end + piece.translate(_TO_ZEROS)
        if signs > MOST_VALUES:
            return "too_many_values", f"more than {MOST_VALUES:,} values; send fewer at a time"
        if _TOO_LONG in zeros:
            return "number_too_long", f"a number of more than {LONGEST_NUMBER} digits; send it as text"
        if digits > MOST_DIGITS:
            return "too_many_digits", f"more than {MOST_DIGITS:,} digits in numbers; send fewer at a time"
        end = zeros[-LONGEST_NUMBER:]
    return None


def _windows(body: bytes) -> Iterator[bytes]:
    for start in range(0, len(body), _WINDOW_BYTES):
        yield body[start : start + _WINDOW_BYTES]


def _outside_texts(body: bytes) -> Iterator[bytes]:
    in_text, escape = 0, b""
    for window in _windows(body):
        text = (escape + window).replace(rb"\\", b"")
        # A backslash at the end belongs to the first character of the next window.
        escape = text[-1:] if text.endswith(b"\\") else b""
        parts = text.removesuffix(b"\\").replace(rb"\"", b"").split(b'"')
        yield b"".join(parts[in_text::2])
        in_text ^= len(parts) % 2 == 0
