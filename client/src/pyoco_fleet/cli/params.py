"""The params of a submit: files, JSON objects and `key=value`, put together."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from .errors import InvalidArgument
from .texts import t

_EXAMPLE = "submit hello --param name=Ada"


def build_params(files: Sequence[str], objects: Sequence[str], pairs: Sequence[str]) -> dict[str, Any]:
    """`--params-file`, then `--params`, then `--param`: of one name the later value counts."""
    params: dict[str, Any] = {}
    for name in files:
        params |= _of_file(name)
    for text in objects:
        params |= _of_object(text)
    for pair in pairs:
        key, value = _of_pair(pair)
        params[key] = value
    return params


def _of_pair(pair: str) -> tuple[str, Any]:
    key, equals, text = (part.strip() for part in pair.partition("="))
    if not equals or not key:
        raise InvalidArgument(t("params.pair", value=pair), _EXAMPLE)
    try:
        return key, json.loads(text, parse_constant=_refuse)
    except ValueError:
        return key, text


def _of_object(text: str) -> dict[str, Any]:
    example = """submit hello --params '{"name": "Ada"}'"""
    try:
        value = json.loads(text, parse_constant=_refuse)
    except ValueError as error:
        raise InvalidArgument(t("params.json", reason=error), example) from None
    return _checked(value, "--params", example)


def _of_file(name: str) -> dict[str, Any]:
    example = "submit hello --params-file params.yaml"
    try:
        text = sys.stdin.read() if name == "-" else Path(name).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "UTF-8"
        raise InvalidArgument(t("params.unreadable", name=name, reason=reason), example) from None
    try:
        value = json.loads(text, parse_constant=_refuse)
    except ValueError:
        value = _of_yaml(text, name, example)
    return _checked(value, name, example)


def _of_yaml(text: str, name: str, example: str) -> Any:
    import yaml

    class Loader(yaml.SafeLoader):
        """Reads a date as text, as JSON has it."""

    Loader.yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    try:
        value = yaml.load(text, Loader=Loader)  # noqa: S506 - a SafeLoader
        return json.loads(json.dumps(value, allow_nan=False))
    except (yaml.YAMLError, ValueError, TypeError, RecursionError) as error:
        reason = str(error).replace("\n", " ")
        raise InvalidArgument(t("params.file", name=name, reason=reason), example) from None


def _checked(value: Any, name: str, example: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InvalidArgument(t("params.no_object", name=name), example)
    return value


def _refuse(constant: str) -> NoReturn:
    """NaN and Infinity are no JSON."""
    raise ValueError(constant)
