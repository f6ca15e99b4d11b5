"""How a route reaches the service."""

from typing import Annotated

from fastapi import Depends, Request

from ..service import RunsService


async def service_of(request: Request) -> RunsService:
    service: RunsService = request.app.state.service
    return service


Service = Annotated[RunsService, Depends(service_of)]
