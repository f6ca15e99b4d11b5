"""Every route of the four services, from the real applications, with the scope that each asks for."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from fastapi import FastAPI
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from starlette.routing import BaseRoute, Route

import fleet_auth.main
import fleet_auth.settings
import fleet_runs_api.main
import fleet_runs_api.settings
import fleet_wheels_api.main
import fleet_wheels_api.settings
import fleet_workers_api.main
import fleet_workers_api.settings
from fleet_contracts.scopes import Scope
from fleet_kit.http.identity import CallerWith


@dataclass(frozen=True, order=True)
class ServiceRoute:
    service: str
    method: str
    path: str
    # None: the route requires no scope.
    scope: Scope | None


def applications() -> dict[str, FastAPI]:
    return {
        "auth": fleet_auth.main.build(fleet_auth.settings.Settings()),
        "runs-api": fleet_runs_api.main.build(fleet_runs_api.settings.RunsSettings()),
        "wheels-api": fleet_wheels_api.main.build(fleet_wheels_api.settings.Settings()),
        "workers-api": fleet_workers_api.main.build(fleet_workers_api.settings.Settings()),
    }


def service_routes() -> list[ServiceRoute]:
    return sorted(
        (
            ServiceRoute(service, method, route.path_format, _scope_of(route))
            for service, app in applications().items()
            for route in _flat(app.routes)
            for method in _methods_of(route)
        ),
        key=lambda route: (route.service, route.path, route.method),
    )


def _flat(routes: Iterable[BaseRoute]) -> Iterator[Route]:
    """All routes, also of included routers; TypeError for any other kind, so that none is overlooked."""
    for route in routes:
        if (router := getattr(route, "original_router", None)) is not None:
            yield from _flat(router.routes)
        elif isinstance(route, Route):
            yield route
        else:
            raise TypeError(f"{route} is a kind of route that this walk does not know")


def _methods_of(route: Route) -> set[str]:
    """The methods of a route, without the HEAD that the framework adds to pages that are not of a service."""
    methods = set(route.methods or ())
    return methods if isinstance(route, APIRoute) else methods - {"HEAD"}


def _scope_of(route: Route) -> Scope | None:
    checks = list(_checks(route.dependant)) if isinstance(route, APIRoute) else []
    return checks[0].scope if checks else None


def _checks(dependant: Dependant) -> Iterator[CallerWith]:
    for dependency in dependant.dependencies:
        if isinstance(dependency.call, CallerWith):
            yield dependency.call
        yield from _checks(dependency)
