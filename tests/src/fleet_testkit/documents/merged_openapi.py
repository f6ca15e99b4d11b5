"""The OpenAPI document of the whole gateway, merged from those of the services."""

import json
import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from fleet_contracts.scopes import Scope

from ..routes import applications, service_routes

Document = dict[str, Any]

ROOT = Path(__file__).parents[4]

# Routes that the gateway does not lead to. /health is that of runs-api, /metrics is its /fleet/metrics.
_INSIDE = {"/ready", "/metrics", "/verify", "/openapi.json"}
_PUBLIC_NAMES = {"/fleet/metrics": "/metrics"}

# Tags, in the order of the document, and the paths that belong to them.
AREAS = (
    ("Runs", ("/runs",)),
    ("Dead letters", ("/dlq",)),
    ("Flows", ("/flows",)),
    ("Workers", ("/workers",)),
    ("Wheels", ("/wheels",)),
    ("API keys", ("/auth",)),
    ("Health and metrics", ("/health", "/metrics")),
)
_METHODS = ("get", "post", "patch", "put", "delete")

KEY_SCHEME = "apiKey"

_ABOUT = """\
Every route of the gateway. Bodies are JSON in UTF-8, times are unix seconds. Answers grow by addition: ignore fields
that you do not know. A query parameter that a route does not know is refused.

Every answer has the header `X-Request-Id`: the id of the request, if it had a good one, or a new one. Every error has
the same body, `ErrorBody`; `error.meta.err_id` names the problem.

With authentication on, every route but `GET /health` needs an API key with the scope that its security names; a key
with the scope `admin` may do everything."""

# Answers that the gateway gives, or every service alike.
_SHARED = {
    "401": ("KeyRequired", "An API key is required, and none was sent (ERR-PYOCO-0014)."),
    "403": (
        "Forbidden",
        "The API key is unknown, revoked or expired, or lacks the scope: `missing_scope` (ERR-PYOCO-0015). "
        "Or the page of another origin asked for a change.",
    ),
    "413": ("TooLarge", "The body is larger than the gateway lets in: `limit_bytes` (ERR-PYOCO-0002)."),
    "415": ("ContentTypeRefused", "The body has another content type than the route reads (ERR-PYOCO-0002)."),
    "422": ("Invalid", "The path, the query or the body is invalid: `fields`."),
    "503": (
        "Unavailable",
        "NATS (ERR-PYOCO-0003), the ledger's database or auth is away; `retryable` says whether to try again.",
    ),
    "default": (
        "Problem",
        "Any other problem: 400 and 431 of a malformed request, 421 of a host that the gateway does not know, "
        "500 of a bug, 502 and 504 of a service that is restarting.",
    ),
}
_ERROR_CONTENT = {"application/json": {"schema": {"$ref": "#/components/schemas/ErrorBody"}}}


@cache
def merged_openapi() -> Document:
    """ValueError if two services use one name for different things."""
    paths: Document = {}
    schemas: Document = {}
    for service, app in applications().items():
        document = app.openapi()
        for name, schema in document["components"]["schemas"].items():
            if schemas.setdefault(name, schema) != schema:
                raise ValueError(f"two services describe {name} differently; rename one of the models")
        for path, methods in document["paths"].items():
            if path not in _INSIDE and (path != "/health" or service == "runs-api"):
                paths[_PUBLIC_NAMES.get(path, path)] = methods
    scopes = {
        (route.method, _PUBLIC_NAMES.get(route.path, route.path)): route.scope
        for route in service_routes()
        if route.path not in _INSIDE
    }
    ordered = sorted(paths, key=lambda path: (_area(path), path))
    named: set[str] = set()
    for path in ordered:
        paths[path] = {
            method: _operation(paths[path][method], path, scopes[method.upper(), path], named)
            for method in _METHODS
            if method in paths[path]
        }
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "pyoco-fleet API",
            "version": tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"],
            "description": _ABOUT,
            "license": {"name": "MIT", "identifier": "MIT"},
        },
        "tags": [{"name": title} for title, _ in AREAS],
        "paths": {path: paths[path] for path in ordered},
        "components": {
            "schemas": {name: _without_titles(schemas[name]) for name in sorted(schemas)},
            "responses": {
                name: {"description": sentence, "content": _ERROR_CONTENT} for name, sentence in _SHARED.values()
            },
            "securitySchemes": {
                KEY_SCHEME: {
                    "type": "apiKey",
                    "in": "header",
                    "name": "X-API-Key",
                    "description": "Needed with `PYOCO_HTTP_AUTH_MODE=api_key`, else ignored. "
                    "`PYOCO_HTTP_API_KEY_HEADER` gives the header another name.",
                }
            },
        },
    }


def merged_openapi_text() -> str:
    return json.dumps(merged_openapi(), ensure_ascii=False, indent=1) + "\n"


def operations_of(document: Document) -> Iterator[tuple[str, str, Document]]:
    """Method, path and description of every operation."""
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield method.upper(), path, operation


def scope_of(operation: Document) -> Scope | None:
    return Scope(operation["security"][0][KEY_SCHEME][0]) if operation["security"] else None


def _area(path: str) -> int:
    """KeyError for a path of no area, so that a new one gets a tag."""
    for place, (_, prefixes) in enumerate(AREAS):
        if path.startswith(prefixes):
            return place
    raise KeyError(path)


def _operation(found: Mapping[str, Any], path: str, scope: Scope | None, named: set[str]) -> Document:
    name = found["summary"].lower().replace(" ", "_")
    if name in named:
        raise ValueError(f"two routes are called {name}; rename one of the functions")
    named.add(name)
    text = found.get("description") or f"{found['summary']}."
    operation: Document = {
        "tags": [AREAS[_area(path)][0]],
        "summary": text.partition("\n\n")[0].partition(". ")[0].rstrip(".").replace("`", ""),
        "description": text if scope is None else f"{text}\n\nScope: `{scope.value}`.",
        "operationId": name,
        # Names of scopes are allowed here since OpenAPI 3.1.
        "security": [{KEY_SCHEME: [scope.value]}] if scope else [],
    }
    operation |= {part: _without_titles(found[part]) for part in ("parameters", "requestBody") if part in found}
    operation["responses"] = dict(_responses(found, needs_key=scope is not None))
    return operation


def _responses(found: Mapping[str, Any], *, needs_key: bool) -> Iterator[tuple[str, Document]]:
    """The route's own answers, and those that it shares with others."""
    given = found["responses"]
    shared = ["422", "default"]
    if needs_key:
        shared += ["401", "403", "503"]
    if "requestBody" in found:
        shared += ["413", "415"]
    for status in sorted({*given, *shared}):
        if status in ("422", "default") or status not in given:
            yield status, {"$ref": f"#/components/responses/{_SHARED[status][0]}"}
        elif status.startswith(("2", "3")):
            yield status, _without_titles(given[status])
        else:
            # The framework gives errors the content type of the good answer.
            yield status, {"description": given[status]["description"], "content": _ERROR_CONTENT}


def _without_titles(part: Any) -> Any:
    """Without the titles that the framework makes of names, which say nothing more than the names."""
    if isinstance(part, list):
        return [_without_titles(item) for item in part]
    if not isinstance(part, dict):
        return part
    return {
        name: {field: _without_titles(schema) for field, schema in value.items()}
        if name == "properties"
        else _without_titles(value)
        for name, value in part.items()
        if name != "title" or not isinstance(value, str)
    }
