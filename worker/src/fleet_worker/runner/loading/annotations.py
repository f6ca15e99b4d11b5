"""Converts the JSON value of a param to the type that a task's argument is annotated with."""

import inspect
import json
import types
from collections.abc import Callable, Generator, Iterable, Iterator
from functools import lru_cache
from typing import Any, Union, get_args, get_origin

from pydantic import TypeAdapter, ValidationError

# A value of exactly this type is what an argument annotated with it gets.
_JSON_TYPES = frozenset({str, int, float, bool, list, dict, type(None)})
_ONE_SHOT = (Iterable, Iterator, Generator)
EMPTY = inspect.Parameter.empty


class DoesNotFit(ValueError):
    """The value is none of the type; the message says why, without the value."""


class Converter:
    def __init__(self, annotation: Any) -> None:
        self.annotation = annotation
        members = get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else (annotation,)
        self._as_they_are = frozenset(member for member in members if _is_json_type(member))
        self.adapter: TypeAdapter[Any] = TypeAdapter(annotation)
        if not self.adapter.pydantic_complete:
            raise TypeError("the annotation has a name that is not defined")

    def convert(self, value: Any) -> Any:
        """The value as the annotated type, the same object if it is one already. Raises DoesNotFit."""
        if type(value) in self._as_they_are:
            return value
        try:
            # From JSON: there, a type that is strict about Python's values takes text for a date or a number.
            return self.adapter.validate_json(json.dumps(value))
        except ValidationError as error:
            raise DoesNotFit(_sentence(error)) from error
        except Exception as error:
            raise DoesNotFit(f"its type raised {type(error).__name__}") from error


def converter_of(annotation: Any) -> Converter | None:
    """None if values are left as they are: no annotation, or one that no JSON value can be converted to."""
    if annotation is EMPTY or annotation is Any or annotation is object or _has_one_shot(annotation):
        return None
    try:
        return _kept_converter(annotation)
    except TypeError:  # perhaps it is not hashable
        return _new_converter(annotation)


def _has_one_shot(annotation: Any) -> bool:
    """Whether pydantic would make something of it that can be read only once."""
    own = get_origin(annotation) or annotation
    return any(own is kind for kind in _ONE_SHOT) or any(map(_has_one_shot, get_args(annotation)))


def _new_converter(annotation: Any) -> Converter | None:
    try:
        return Converter(annotation)
    except Exception:  # noqa: BLE001 - it may be any class, with code of its own
        return None


_kept_converter = lru_cache(maxsize=1024)(_new_converter)


def annotation_of(function: Callable[..., Any], parameter: inspect.Parameter) -> Any:
    """The annotation, also if it is text; EMPTY if it cannot be had."""
    annotation = parameter.annotation
    if isinstance(annotation, str):
        names = getattr(inspect.unwrap(function), "__globals__", {})
        try:
            annotation = eval(annotation, dict(names))  # noqa: S307 - the flow's own code, as Python evaluates it
        except Exception:  # noqa: BLE001 - a name that exists only inside a function, or for type checkers
            return EMPTY
    try:
        if annotation is not EMPTY and parameter.default is None and not _admits_none(annotation):
            return Union[annotation, None]  # noqa: UP007 - `|` is not defined for every annotation
    except Exception:  # noqa: BLE001 - it is no type, but any object
        return EMPTY
    return annotation


def _admits_none(annotation: Any) -> bool:
    return annotation in (Any, object, None) or type(None) in get_args(annotation)


def _is_json_type(annotation: Any) -> bool:
    return isinstance(annotation, type) and annotation in _JSON_TYPES


def _sentence(error: ValidationError) -> str:
    errors = error.errors(include_url=False, include_input=False, include_context=False)
    place = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in errors[0]["loc"]).lstrip(".")
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    message = errors[0]["msg"]
    return f"{place}: {message}{more}" if place else f"{message}{more}"
