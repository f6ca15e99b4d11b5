"""Undocumented parts of libraries that the kit relies on: as they were, and of a pinned range of versions."""

import asyncio
import inspect
import tomllib
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import pytest
from fastapi import APIRouter, Query
from fastapi.routing import APIRoute
from nats.aio.client import Client
from packaging.requirements import Requirement
from pydantic import BaseModel, Field
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from fleet_kit.http.query_parameters import known_parameters
from fleet_kit.nats.client import ReconnectingClient
from fleet_testkit.nats_server import NatsServer
from fleet_testkit.waiting import eventually

PROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]


# Used by nats/client.py, http/protocol.py and http/query_parameters.py.
@pytest.mark.parametrize("library", ["nats-py", "uvicorn", "fastapi"])
def test_the_range_of_versions_has_an_end(library: str) -> None:
    [wanted] = [found for text in PROJECT["dependencies"] if (found := Requirement(text)).name == library]
    assert "<" in {one.operator for one in wanted.specifier}
    assert wanted.specifier.contains(version(library))


@pytest.mark.parametrize(
    ("method", "parameters"),
    [
        (Client._process_op_err, ["self", "e"]),
        (Client._process_err, ["self", "err_msg"]),
        (HttpToolsProtocol.send_400_response, ["self", "msg"]),
    ],
)
def test_the_methods_that_are_overridden_are_still_called_so(method: object, parameters: list[str]) -> None:
    assert callable(method)
    assert list(inspect.signature(method).parameters) == parameters


async def test_the_connection_of_a_nats_client_can_be_aborted(nats_server: NatsServer) -> None:
    client = ReconnectingClient()
    await client.connect(nats_server.url)
    try:
        assert isinstance(client._transport._io_writer, asyncio.StreamWriter)  # type: ignore[union-attr]
        assert inspect.iscoroutinefunction(client._error_cb)
    finally:
        await client.close()


async def test_the_library_alone_still_closes_its_client_for_an_error_of_the_server(nats_server: NatsServer) -> None:
    """This is why the client overrides it."""
    client = Client()
    await client.connect(nats_server.url)
    await client._process_err("'account connection limit exceeded'")
    await eventually(lambda: client.is_closed, what="the client being closed")


def test_a_route_of_the_framework_names_its_query_parameters() -> None:
    class Page(BaseModel):
        limit: int = 10
        newest: Annotated[bool, Field(alias="first")] = True

    router = APIRouter()

    @router.get("/things")
    async def things(page: Annotated[Page, Query()]) -> None: ...

    @router.get("/others")
    async def others(kind: str, order: Annotated[str, Query(alias="by")] = "age") -> None: ...

    routes = [route for route in router.routes if isinstance(route, APIRoute)]
    assert [set(known_parameters(route)) for route in routes] == [{"limit", "first"}, {"kind", "by"}]
