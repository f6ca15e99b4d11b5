"""Params of flows as types, and what else Python has that JSON has not."""

import json
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from pydantic import TypeAdapter
from pydantic_core import to_jsonable_python

from .errors import BadRequest

C = TypeVar("C", bound=type)

_FLOWS: dict[type, str] = {}


def params_of(flow_name: str) -> Callable[[C], C]:
    """Say that instances of a class, a pydantic model or a dataclass, are the params of a flow.

    @params_of("charge")
    class Charge(BaseModel):
        amount: int

    fleet.submit(Charge(amount=3))
    """

    def register(kind: C) -> C:
        _FLOWS[kind] = flow_name
        return kind

    return register


def flow_of(kind: type) -> str:
    for ancestor in kind.__mro__:
        if ancestor in _FLOWS:
            return _FLOWS[ancestor]
    raise TypeError(f'{kind.__name__} is not known as the params of a flow; decorate it with @params_of("flow name")')


def flow_and_params(flow: Any, params: Any = None) -> tuple[str, dict[str, Any]]:
    """`flow` is a name, or with typed params their class, or the params themselves."""
    if isinstance(flow, str):
        return flow, as_params(params)
    if isinstance(flow, type):
        return flow_of(flow), as_params(params)
    return flow_of(type(flow)), as_params(flow)


def as_params(params: Any) -> dict[str, Any]:
    if params is None:
        return {}
    try:
        if isinstance(params, Mapping):
            plain = to_jsonable_python(dict(params))
        else:
            plain = TypeAdapter(type(params)).dump_python(params, mode="json", by_alias=True)
        # Not a number, and infinity.
        json.dumps(plain, allow_nan=False)
    except ValueError as error:
        raise BadRequest(f"params cannot be written as JSON: {error}", code="VALIDATION_ERROR") from error
    if not isinstance(plain, dict):
        raise BadRequest(f"params must be an object with names, not {type(params).__name__}", code="VALIDATION_ERROR")
    return plain
