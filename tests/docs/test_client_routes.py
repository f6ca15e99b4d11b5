"""Each route of the gateway has a method of the client, and each method a route."""

import inspect
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest

from fleet_testkit.documents.http_reference import operations
from pyoco_fleet import (
    AsyncFleet,
    AsyncPyocoHttpClient,
    AsyncRun,
    AsyncRunGroup,
    Fleet,
    PyocoHttpClient,
    Run,
    RunGroup,
)
from pyoco_fleet.calls import Call
from pyoco_fleet.routes import administration, dead_letters, runs, wheels, workers


def builders() -> Iterator[tuple[str, Callable[..., Call[Any]]]]:
    """The functions that describe a request, by name."""
    modules: list[ModuleType] = [administration, dead_letters, runs, wheels, workers]
    for module in modules:
        for name, function in inspect.getmembers(module, inspect.isfunction):
            signature = inspect.signature(function)
            if (
                function.__module__ == module.__name__
                and getattr(signature.return_annotation, "__origin__", None) is Call
            ):
                yield name, function


def request_of(build: Callable[..., Call[Any]]) -> Call[Any]:
    needed = [p for p in inspect.signature(build).parameters.values() if p.default is p.empty]
    named = {p.name: b"x" if p.name == "data" else ["x"] if "Sequence" in str(p.annotation) else "x" for p in needed}
    return build(**{name: {} if name == "body" else value for name, value in named.items() if name not in _OPEN})


_OPEN = {"options", "criteria", "filters"}


def test_each_route_has_a_method_and_each_method_a_route() -> None:
    ours = {f"{call.method} {call.route}" for call in (request_of(build) for _, build in builders())}
    assert ours == {operation.name for operation in operations()}


def test_each_query_parameter_that_a_method_names_is_one_of_its_route() -> None:
    known = {
        operation.name: {parameter["name"] for parameter in operation.description.get("parameters", ())}
        for operation in operations()
    }
    for name, build in builders():
        call = request_of(build)
        unknown = set(call.params or ()) - known[f"{call.method} {call.route}"]
        assert not unknown, f"{name} sends {unknown}"


@pytest.mark.parametrize("client", [PyocoHttpClient, AsyncPyocoHttpClient])
def test_each_request_is_a_method_of_both_clients(client: type) -> None:
    # `submit` is what `submit_run` sends, for those who have the body already.
    assert {name for name, _ in builders()} - {"submit"} <= set(dir(client))


@pytest.mark.parametrize(
    ("blocking", "asynchronous"),
    [(PyocoHttpClient, AsyncPyocoHttpClient), (Fleet, AsyncFleet), (Run, AsyncRun), (RunGroup, AsyncRunGroup)],
)
def test_both_kinds_of_client_have_the_same_methods_with_the_same_options(blocking: type, asynchronous: type) -> None:
    def public(kind: type) -> dict[str, Any]:
        return {
            name: list(inspect.signature(member).parameters) if inspect.isfunction(member) else type(member).__name__
            for name, member in inspect.getmembers(kind)
            if not name.startswith("_")
        }

    # A property cannot wait for an answer: the asynchronous run has `refresh` and `state`.
    assert {k: v for k, v in public(blocking).items() if k != "status"} == public(asynchronous)
