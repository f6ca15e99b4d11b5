"""Additions to the OpenAPI schema of a service: error bodies, and bodies that routes parse by hand."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict


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


def json_body(model: type[BaseModel], *, required: bool = True) -> dict[str, Any]:
    """The `openapi_extra` of a route that parses its JSON body by hand."""
    return _body("application/json", _without_references(model.model_json_schema()), required=required)


def event_stream() -> dict[int | str, dict[str, Any]]:
    """The `responses` of a route that answers with server-sent events."""
    schema = {"type": "string", "format": "event-stream"}
    return {200: {"description": "Server-sent events", "content": {"text/event-stream": {"schema": schema}}}}


def form_body(schema: dict[str, Any]) -> dict[str, Any]:
    """The `openapi_extra` of a route that parses its multipart form by hand."""
    return _body("multipart/form-data", schema, required=True)


def _body(content_type: str, schema: dict[str, Any], *, required: bool) -> dict[str, Any]:
    return {"requestBody": {"required": required, "content": {content_type: {"schema": schema}}}}


def _without_references(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema with its `$ref`s inlined: inside the OpenAPI document they would not resolve."""
    definitions = schema.pop("$defs", {})

    def resolve(part: Any) -> Any:
        if isinstance(part, list):
            return [resolve(item) for item in part]
        if not isinstance(part, dict):
            return part
        if "$ref" in part:
            return resolve(definitions[part["$ref"].removeprefix("#/$defs/")])
        return {name: resolve(value) for name, value in part.items()}

    resolved: dict[str, Any] = resolve(schema)
    return resolved
