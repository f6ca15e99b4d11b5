"""JSON Schema in words, for the cells of a Markdown table."""

from collections.abc import Iterator, Mapping
from typing import Any

Schema = Mapping[str, Any]

# A longer pattern, or one about control characters, says less than the sentence beside it.
_LONGEST_PATTERN = 40


def cell(text: str) -> str:
    """The text as the cell of a table."""
    return " ".join(text.replace("|", "\\|").split())


def type_of(schema: Schema, *, nullable: bool = True) -> str:
    """`nullable=False` leaves out null, where a missing value means the same."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    if "const" in schema:
        value = schema["const"]
        return f"`{str(value).lower() if isinstance(value, bool) else value}`"
    if choices := schema.get("anyOf") or schema.get("oneOf"):
        texts = dict.fromkeys(type_of(choice) for choice in choices if nullable or choice.get("type") != "null")
        return " or ".join(texts)
    match schema.get("type"):
        case "array":
            return _array(schema)
        case "object":
            return _object(schema)
        case "string":
            return _string(schema)
        case "integer" | "number":
            return _with(schema["type"], _range(schema, "minimum", "maximum", "exclusiveMinimum"))
        case str(kind):
            return kind
        case _:
            return "any"


def fields_of(schema: Schema, prefix: str = "") -> Iterator[tuple[str, Schema, bool]]:
    """Name, schema and whether it is required of every field; those of objects inside with dotted names."""
    required = schema.get("required", ())
    for name, field in schema.get("properties", {}).items():
        yield f"{prefix}{name}", field, name in required
        for inner in (field, *field.get("anyOf", ()), *([field["items"]] if "items" in field else ())):
            if "properties" in inner:
                yield from fields_of(inner, f"{prefix}{name}.")


def _array(schema: Schema) -> str:
    items = type_of(schema.get("items", {}))
    length = _range(schema, "minItems", "maxItems")
    return f"array{f' ({length})' if length else ''} of {f'({items})' if ' or ' in items else items}"


def _object(schema: Schema) -> str:
    values = schema.get("additionalProperties")
    return f"object of {type_of(values)}" if isinstance(values, Mapping) and values else "object"


def _string(schema: Schema) -> str:
    words = "file" if schema.get("format") == "binary" else "string"
    length = _range(schema, "minLength", "maxLength")
    pattern = schema.get("pattern", "")
    shown = f"`{pattern}`" if pattern and len(pattern) <= _LONGEST_PATTERN and "\\x" not in pattern else ""
    return _with(words, f"{length} characters" if length else "", shown)


def _range(schema: Schema, lowest: str, highest: str, above: str = "") -> str:
    low, high = _number(schema.get(lowest)), _number(schema.get(highest))
    if above and above in schema:
        return f"above {_number(schema[above])}" + (f", at most {high}" if high is not None else "")
    match low, high:
        case None, None:
            return ""
        case None, _:
            return f"at most {high}"
        case _, None:
            return f"at least {low}"
        case _:
            return f"{low} … {high}"


def _number(value: float | None) -> float | None:
    """Without a fraction that is none: the same limit comes as 1 and as 1.0."""
    return int(value) if value is not None and value == int(value) else value


def _with(kind: str, *limits: str) -> str:
    return ", ".join((kind, *filter(None, limits)))
