"""Additions to the OpenAPI document of a service: errors, event streams, and bodies that routes parse by hand."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict
from pydantic.json_schema import JsonSchemaMode

from ..errors import FleetError

_COMPONENTS = "#/components/schemas/"


class ErrorMeta(BaseModel):
    """Which problem it is, and what else helps to solve it."""

    model_config = ConfigDict(extra="allow")

    request_id: str | None
    err_id: str | None = None
    msg_id: str | None = None
    retryable: bool | None = None


class ErrorDetails(BaseModel):
    code: str
    message: str
    meta: ErrorMeta


class ErrorBody(BaseModel):
    """The body of every answer from 400 on."""

    ok: Literal[False]
    error: ErrorDetails
    detail: str


# Replaces the framework's own error body, which no service sends.
ERROR_RESPONSES: dict[int | str, dict[str, Any]] = {
    422: {"model": ErrorBody, "description": "The request cannot be understood"},
    "default": {"model": ErrorBody, "description": "A problem; `meta` names it"},
}


def refusals(*errors: type[FleetError]) -> dict[int | str, dict[str, Any]]:
    """The `responses` of a route that raises these errors: for each status the default messages of its errors."""
    sentences: dict[int | str, list[str]] = {}
    for error in errors:
        sentence = (error.__doc__ or "").strip().partition("\n")[0]
        name = f" ({error.problem.err_id})" if error.problem else ""
        sentences.setdefault(error.status_of_class(), []).append(f"{sentence.rstrip('.')}{name}.")
    return {status: {"model": ErrorBody, "description": " ".join(said)} for status, said in sentences.items()}


def event_stream(**events: type[BaseModel]) -> dict[int | str, dict[str, Any]]:
    """The `responses` of a route that sends server-sent events: their names, with the models of their data."""
    about = [f"- `{kind}`: {(model.__doc__ or '').strip()}" for kind, model in events.items()]
    shapes = [
        {
            "type": "object",
            "required": ["event", "data"],
            "properties": {
                "event": {"const": kind},
                "id": {"type": "string"},
                "data": {
                    "type": "string",
                    "contentMediaType": "application/json",
                    "contentSchema": _schema_of(model, "serialization"),
                },
            },
        }
        for kind, model in events.items()
    ]
    # OpenAPI 3.1 has no schema for the items of a stream; tools take that of the content for that of one event.
    return {
        200: {
            "description": "\n".join(["Server-sent events; the data of each is JSON on one line.", "", *about]),
            "content": {"text/event-stream": {"schema": {"description": "One event.", "oneOf": shapes}}},
        }
    }


def json_body(model: type[BaseModel], *, required: bool = True) -> dict[str, Any]:
    """The `openapi_extra` of a route that parses its JSON body by hand."""
    return _body("application/json", _schema_of(model, "validation"), required=required)


def form_body(schema: dict[str, Any]) -> dict[str, Any]:
    """The `openapi_extra` of a route that parses its multipart form by hand."""
    return _body("multipart/form-data", schema, required=True)


def _body(content_type: str, schema: dict[str, Any], *, required: bool) -> dict[str, Any]:
    return {"requestBody": {"required": required, "content": {content_type: {"schema": schema}}}}


def _schema_of(model: type[BaseModel], mode: JsonSchemaMode) -> dict[str, Any]:
    """A reference to the model's schema, with the schemas that `lift_definitions` puts where it leads to."""
    schema = model.model_json_schema(ref_template=f"{_COMPONENTS}{{model}}", mode=mode)
    definitions = schema.pop("$defs", {})
    return {"$ref": f"{_COMPONENTS}{model.__name__}", "$defs": {**definitions, model.__name__: schema}}


def lift_definitions(document: dict[str, Any]) -> None:
    """Move the `$defs` of all schemas in the document to its components; ValueError if two of one name differ."""
    components = document.setdefault("components", {}).setdefault("schemas", {})

    def lift(part: Any) -> None:
        if isinstance(part, list):
            for item in part:
                lift(item)
        elif isinstance(part, dict):
            for name, schema in part.pop("$defs", {}).items():
                if components.setdefault(name, schema) != schema:
                    raise ValueError(f"two schemas of this service have the name {name}; rename one of the models")
            for value in part.values():
                lift(value)

    lift(document["paths"])
