"""Every route of every service asks for a scope; those that do not are named here."""

from fleet_contracts.scopes import Scope
from fleet_testkit.routes import ServiceRoute, applications, service_routes

# None of these goes through the gateway but runs-api's GET /health, which reveals nothing.
OPEN = {
    *((service, "GET", path) for service in applications() for path in ("/health", "/ready", "/openapi.json")),
    *((service, "GET", "/metrics") for service in applications()),
    ("auth", "GET", "/verify"),
}

# They change nothing; the ids of many runs do not fit into an address.
READING_POSTS = {("POST", "/runs/watch"), ("POST", "/runs/results")}


def _place(route: ServiceRoute) -> tuple[str, str, str]:
    return route.service, route.method, route.path


def test_a_route_without_a_scope_is_a_named_exception() -> None:
    assert {_place(route) for route in service_routes() if route.scope is None} == OPEN


def test_the_walk_sees_every_route_that_the_applications_describe() -> None:
    described = {
        (service, method.upper(), path)
        for service, app in applications().items()
        for path, methods in app.openapi()["paths"].items()
        for method in methods
    }
    seen = {_place(route) for route in service_routes()}
    assert described - seen == set()
    # The description leaves HEAD out where GET stands for it.
    assert {place for place in seen - described if place[1] != "HEAD"} == {
        (service, "GET", "/openapi.json") for service in applications()
    }


def test_a_scope_to_read_changes_nothing() -> None:
    """A read asks for a scope of reading, a change for one of writing; keys are the operators' alone."""
    for route in service_routes():
        if route.scope is None or route.scope is Scope.ADMIN:
            continue
        area = {"runs-api": "runs", "workers-api": "workers", "wheels-api": "wheels"}[route.service]
        if route.path == "/fleet/metrics":
            assert route.scope is Scope.METRICS_READ
        elif route.path.startswith("/flows"):
            # Flows belong to the fleet, like the workers that offer them.
            assert route.scope is Scope.WORKERS_READ
        else:
            is_read = route.method in ("GET", "HEAD") or (route.method, route.path) in READING_POSTS
            kind = "read" if is_read else "write"
            assert route.scope.value == f"{area}:{kind}", route
