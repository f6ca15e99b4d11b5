"""Checks params against the JSON Schema of a flow. Schemas come from workers, so they are bounded, never trusted."""

from collections.abc import Iterator
from itertools import islice
from typing import Any

import jsonschema_rs
import orjson

from fleet_contracts.catalogue import REPLACES_RESULT_OF
from fleet_kit.http.unknown_names import about_unknown
from fleet_kit.logs.text import visible

_MOST_SCHEMA_BYTES = 64 * 1024
# Values of a schema with its references written out: two references each in a chain of thirty would be a billion.
_MOST_NODES = 5_000
_MOST_LEVELS = 60
# A pattern may take a millisecond to compile. They are of the linear kind: no backtracking.
_MOST_PATTERNS = 50
_PATTERNS = jsonschema_rs.RegexOptions(size_limit=256 * 1024, dfa_size_limit=256 * 1024)
# Values of the schema times values of the params: two million take up to 400 ms (`anyOf` of constants for each item).
_MOST_STEPS = 2_000_000
# All faults are collected at once, each with those of its alternatives: up to 1 kB for each step.
_MOST_STEPS_IN_DETAIL = 20_000
_MOST_FAULTS = 20
_MOST_KNOWN = 50
_LONGEST_REASON = 300
_LONGEST_PART = 64
# Keywords that give a part a name or an address of its own, which the bounds would have to follow.
_NAMING = ("$id", "$anchor", "$dynamicAnchor", "$dynamicRef", "$recursiveRef")

Fault = dict[str, str]


class UnusableSchema(ValueError):
    """The schema is too costly, refers to what is elsewhere or to itself, or is not a JSON Schema."""


class ParamsSchema:
    """A compiled schema."""

    def __init__(self, schema: dict[str, Any], validator: jsonschema_rs.Validator, *, nodes: int) -> None:
        # Not those that only take the place of a task's result.
        own = (
            name
            for name, part in _mapping(schema.get("properties")).items()
            if REPLACES_RESULT_OF not in _mapping(part)
        )
        self._known = list(islice(own, _MOST_KNOWN))
        self._validator = validator
        self._nodes = nodes

    @classmethod
    def compile(cls, schema: dict[str, Any]) -> "ParamsSchema":
        """UnusableSchema if it cannot be used."""
        try:
            nodes = _Size(schema).nodes
            # Formats are only noted: a worker takes dates, for example, in more forms than the standard's.
            validator = jsonschema_rs.Draft202012Validator(
                schema, validate_formats=False, offline=True, mask="value", pattern_options=_PATTERNS
            )
        except UnusableSchema:
            raise
        except BaseException as error:
            # A panic of the library, which is written in Rust, is no Exception.
            said = visible(str(error).partition("\n")[0])
            raise UnusableSchema(said[:_LONGEST_REASON]) from error
        return cls(schema, validator, nodes=nodes)

    def faults(self, params: dict[str, Any], *, values: int) -> list[Fault]:
        """Why the params do not fit; nothing if they do, or if it would cost too much to know. `values`: how many."""
        steps = self._nodes * values
        if steps > _MOST_STEPS:
            return []
        try:
            if self._validator.is_valid(params):
                return []
            if steps > _MOST_STEPS_IN_DETAIL:
                return [{"field": "params", "reason": "does not fit the schema of the flow"}]
            every = (fault for error in self._validator.iter_errors(params) for fault in self._faults_of(error))
            return list(islice(every, _MOST_FAULTS))
        except BaseException:  # noqa: BLE001 - as above; the worker checks again
            return []

    def _faults_of(self, error: jsonschema_rs.ValidationError) -> Iterator[Fault]:
        path = error.instance_path
        kinds = jsonschema_rs.ValidationErrorKind
        match error.kind:
            case kinds.AdditionalProperties(unexpected=names):
                for name in names[:_MOST_FAULTS]:
                    reason = "is not allowed here" if path else about_unknown("parameter", [name], self._known)
                    yield _fault([*path, name], reason)
            case kinds.Required(property=name):
                yield _fault([*path, name], "is required")
            case kinds.AnyOf(context=branches) | kinds.OneOfNotValid(context=branches):
                firsts = [branch[0].message for branch in branches if branch]
                yield _fault(path, " and ".join(dict.fromkeys(firsts)) or error.message)
            case _:
                yield _fault(path, error.message)


def _fault(path: list[str | int], reason: str) -> Fault:
    field = ".".join(str(part)[:_LONGEST_PART] for part in ["params", *path])
    return {"field": visible(field), "reason": visible(reason)[:_LONGEST_REASON]}


class _Size:
    """Counts the values of a schema, its references written out."""

    def __init__(self, schema: dict[str, Any]) -> None:
        if len(orjson.dumps(schema)) > _MOST_SCHEMA_BYTES:
            raise UnusableSchema("too large")
        self._schema = schema
        self._sizes: dict[str, int] = {}
        self._open: set[str] = set()
        self._patterns = 0
        self.nodes = self._of(schema, 0)

    def _of(self, part: Any, level: int) -> int:
        if level + len(self._open) > _MOST_LEVELS:
            raise UnusableSchema("too deep")
        total = 1
        if isinstance(part, dict):
            if any(isinstance(part.get(name), str) for name in _NAMING):
                raise UnusableSchema("names parts of itself")
            if isinstance(reference := part.get("$ref"), str):
                total += self._of_reference(reference, level)
            self._patterns += isinstance(part.get("pattern"), str) + len(_mapping(part.get("patternProperties")))
            total += sum(self._of(value, level + 1) for value in part.values())
        elif isinstance(part, list):
            total += sum(self._of(value, level + 1) for value in part)
        if total > _MOST_NODES or self._patterns > _MOST_PATTERNS:
            raise UnusableSchema("too costly")
        return total

    def _of_reference(self, reference: str, level: int) -> int:
        if reference in self._open or not reference.startswith("#/"):
            raise UnusableSchema("refers to itself, or to what is elsewhere")
        if reference not in self._sizes:
            self._open.add(reference)
            self._sizes[reference] = self._of(self._target(reference), level + 1)
            self._open.discard(reference)
        return self._sizes[reference]

    def _target(self, reference: str) -> Any:
        found: Any = self._schema
        for name in reference.removeprefix("#/").split("/"):
            found = found[int(name)] if isinstance(found, list) else found[name.replace("~1", "/").replace("~0", "~")]
        return found


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def values_in(document: bytes) -> int:
    """About how many values a JSON document has: one of these signs is before each, but they are also in texts."""
    return 1 + document.count(b",") + document.count(b"[") + document.count(b"{")
