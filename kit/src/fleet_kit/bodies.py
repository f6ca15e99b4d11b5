"""JSON bodies of requests that are parsed by hand: strictly, and refused as the framework would refuse them."""

from typing import Any, TypeVar

from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ValidationError
from pydantic_core import from_json

M = TypeVar("M", bound=BaseModel)


def parse(model: type[M], body: bytes) -> M:
    try:
        return model.model_validate(from_json(body, allow_inf_nan=False))
    except ValidationError as error:
        # The library would name our class.
        reasons = [
            {**reason, "msg": "Input should be an object"} if reason["type"] == "model_type" else reason
            for reason in error.errors(include_url=False, include_context=False)
        ]
        raise RequestValidationError(reasons) from error
    except ValueError as error:
        detail: dict[str, Any] = {"type": "json_invalid", "loc": ("body",), "msg": f"not valid JSON: {error}"}
        raise RequestValidationError([detail]) from error
