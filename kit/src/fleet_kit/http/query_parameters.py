"""Query parameters: unknown ones are refused; times are unix seconds or ISO 8601."""

import re
from collections.abc import Collection, Iterator
from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import Request
from fastapi.dependencies.models import Dependant
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel, BeforeValidator, Field, WithJsonSchema
from pydantic_core import PydanticCustomError

from .unknown_names import about_unknown

_LATEST_MOMENT = 32503680000  # the year 3000


async def refuse_unknown_parameters(request: Request) -> None:
    """Refuse unknown query parameters; a dependency of every route."""
    if request.scope["query_string"]:
        refuse_parameters_beside(known_parameters(request.scope["route"]), request)


def refuse_parameters_beside(known: Collection[str], request: Request) -> None:
    """Refuse parameters that are not `known`: with a typo ignored, the answer would be to another question."""
    if unknown := [name for name in request.query_params if name not in known]:
        reason = about_unknown("parameter", unknown, known)
        raise RequestValidationError([{"type": "unknown_parameter", "loc": ("query",), "msg": reason}])


def known_parameters(route: APIRoute) -> frozenset[str]:
    return frozenset(_names_of(route.dependant))


def _names_of(dependant: Dependant) -> Iterator[str]:
    for field in dependant.query_params:
        annotation = field.field_info.annotation
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            yield from (info.alias or name for name, info in annotation.model_fields.items())
        else:
            yield field.alias
    for inner in dependant.dependencies:
        yield from _names_of(inner)


def _seconds_of(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    text = value.strip()
    if re.fullmatch(r"\d{8}", text):
        # Ambiguous: a date, or unix seconds of a day in 1970, which is hardly ever meant.
        reason = "Input should be a date such as 2026-01-31; write unix seconds of 1970 with a point (20260131.0)"
        raise PydanticCustomError("moment", reason)
    try:
        return float(text)
    except ValueError:
        pass
    # An unescaped + arrives as a space.
    for spelling in (text, re.sub(r" (?=\d\d:?\d\d$)", "+", text)):
        try:
            moment = datetime.fromisoformat(spelling)
        except ValueError:
            continue
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    raise PydanticCustomError("moment", "Input should be unix seconds or a time such as 2026-01-31T09:30:00Z")


# A time in unix seconds, given as a number or in ISO 8601. Without an offset it is UTC.
Moment = Annotated[
    float,
    BeforeValidator(_seconds_of),
    Field(ge=0, le=_LATEST_MOMENT, allow_inf_nan=False),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "number", "minimum": 0, "maximum": _LATEST_MOMENT},
                {"type": "string", "format": "date-time"},
            ]
        }
    ),
]
