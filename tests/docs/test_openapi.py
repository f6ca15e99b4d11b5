"""The OpenAPI document of the gateway is a valid one, complete in itself, and names what a caller needs."""

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from fleet_contracts.scopes import Scope
from fleet_testkit.documents.merged_openapi import Document, merged_openapi, operations_of, scope_of
from fleet_testkit.routes import service_routes


@pytest.fixture(scope="module")
def document() -> Document:
    return merged_openapi()


def parts(part: Any) -> Iterator[dict[str, Any]]:
    """Every object in the document."""
    if isinstance(part, dict):
        yield part
        part = list(part.values())
    if isinstance(part, list):
        for item in part:
            yield from parts(item)


def test_it_is_valid_by_the_schema_of_openapi(document: Document) -> None:
    import schemathesis

    schemathesis.openapi.from_dict(document).validate()
    schemas = [part["schema"] for part in parts(document["paths"]) if "schema" in part]
    for schema in [*schemas, *document["components"]["schemas"].values()]:
        Draft202012Validator.check_schema(schema)


def test_every_reference_leads_to_a_component_and_every_component_is_used(document: Document) -> None:
    named = {part["$ref"] for part in parts(document) if isinstance(part.get("$ref"), str)}
    there = {
        f"#/components/{kind}/{name}" for kind in ("schemas", "responses") for name in document["components"][kind]
    }
    assert named == there


def test_every_operation_has_a_name_of_its_own_and_describes_the_parameters_of_its_path(document: Document) -> None:
    found = list(operations_of(document))
    names = Counter(operation["operationId"] for _, _, operation in found)
    assert set(names.values()) == {1}
    for method, path, operation in found:
        described = {one["name"] for one in operation.get("parameters", ()) if one["in"] == "path"}
        assert described == set(re.findall(r"\{(\w+)\}", path)), f"{method} {path}"


def test_every_public_route_is_there_with_its_scope(document: Document) -> None:
    inside = {"/ready", "/verify", "/metrics", "/openapi.json"}
    public = {
        (route.method, route.path.replace("/fleet/metrics", "/metrics")): route.scope
        for route in service_routes()
        if route.path not in inside and route.method != "HEAD"
    }
    assert {(method, path): scope_of(operation) for method, path, operation in operations_of(document)} == public
    assert scope_of(document["paths"]["/runs"]["post"]) is Scope.RUNS_WRITE


def test_every_error_has_the_one_body_and_keys_are_refused_only_where_they_matter(document: Document) -> None:
    for method, path, operation in operations_of(document):
        for status, answer in operation["responses"].items():
            resolved = (
                document["components"]["responses"][answer["$ref"].rpartition("/")[2]] if "$ref" in answer else answer
            )
            if status[0] not in "23":
                [(kind, content)] = resolved["content"].items()
                assert (kind, content["schema"]["$ref"]) == ("application/json", "#/components/schemas/ErrorBody")
            assert resolved["description"], f"{method} {path} {status}"
        has_key_refusals = {"401", "403"} <= operation["responses"].keys()
        assert has_key_refusals == (scope_of(operation) is not None), f"{method} {path}"
        # Who names one thing may name one that is not there.
        assert "{" not in path or "404" in operation["responses"], f"{method} {path}"


def test_streams_forms_and_files_have_their_content_types(document: Document) -> None:
    def answer(path: str) -> set[str]:
        return set(document["paths"][path]["get"]["responses"]["200"]["content"])

    streams = {path for _, path, one in operations_of(document) if "text/event-stream" in str(one["responses"])}
    assert streams >= {"/runs/{run_id}/watch", "/runs/{run_id}/logs", "/flows/events", "/workers/events"}
    assert answer("/runs/{run_id}/logs") == {"text/plain", "text/event-stream"}
    assert answer("/wheels/{wheel_name}") == {"application/octet-stream"}
    for path in ("/runs/yaml", "/wheels"):
        assert set(document["paths"][path]["post"]["requestBody"]["content"]) == {"multipart/form-data"}
    # Without a content type an answer would be of any kind.
    bare = {
        path
        for _, path, one in operations_of(document)
        if "content" not in one["responses"].get("200", {"content": 1})
    }
    assert bare == set()
