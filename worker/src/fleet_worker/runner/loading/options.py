"""A flow's own options, which stand beside it: `flow.fleet = {"retry": 3, "timeout_sec": 600}`."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator
from pyoco import Flow

from fleet_contracts.catalogue import FlowDefaults
from fleet_contracts.retry import RetryPolicy

_ATTRIBUTE = "fleet"


class OptionsUnusable(Exception):
    """The options of a flow cannot be used; the message says why."""


class FlowOptions(FlowDefaults):
    """The defaults of a submit, and what the catalogue says about the flow."""

    model_config = ConfigDict(extra="forbid")

    description: str | None = Field(None, max_length=2000)

    @field_validator("retry", mode="before")
    @classmethod
    def _read_retry(cls, value: Any) -> Any:
        if isinstance(value, int) and not isinstance(value, bool):
            return {"max_attempts": value}
        if isinstance(value, Mapping) and (unknown := value.keys() - RetryPolicy.model_fields.keys()):
            raise ValueError(f"unknown: {', '.join(sorted(map(str, unknown)))}")
        return value

    @property
    def defaults(self) -> FlowDefaults:
        return FlowDefaults(retry=self.retry, timeout_sec=self.timeout_sec, tag=self.tag)


def options_of(flow: Flow) -> FlowOptions:
    """The options of the flow's attribute `fleet`: a dict, or any object that has them as attributes."""
    given = getattr(flow, _ATTRIBUTE, None)
    if given is None:
        return FlowOptions()
    try:
        return FlowOptions.model_validate(_as_dict(given))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        if first["type"] == "extra_forbidden":
            raise OptionsUnusable(
                f"there is no option {place!r}; known: {', '.join(FlowOptions.model_fields)}"
            ) from None
        raise OptionsUnusable(f"option {place!r}: {first['msg']}") from None


def _as_dict(given: Any) -> dict[str, Any]:
    if isinstance(given, Mapping):
        found = dict(given)
    elif isinstance(given, BaseModel):
        found = given.model_dump()
    elif dataclasses.is_dataclass(given) and not isinstance(given, type):
        found = dataclasses.asdict(given)
    elif hasattr(given, "__dict__"):
        found = {name: value for name, value in vars(given).items() if not name.startswith("_")}
    else:
        raise OptionsUnusable(f"it is a {type(given).__name__}, not a dict or an object with attributes")
    return {str(name): value for name, value in found.items() if value is not None}
