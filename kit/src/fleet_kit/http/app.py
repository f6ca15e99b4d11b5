"""The FastAPI application of every service: request ids, error envelopes, request logging, readiness."""

import asyncio
import logging
import re
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import orjson
from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from fastapi.routing import APIRoute
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, CollectorRegistry, generate_latest
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.routing import Route
from starlette.types import ASGIApp, Lifespan, Message, Receive, Scope, Send

from fleet_contracts.log_events import ErrorCode
from fleet_contracts.names import HEADER_REQUEST_ID
from fleet_contracts.problems import Problem

from ..errors import FleetError, code_of_status, envelope
from ..logs.events import log_request
from ..logs.failures import failure_meta, meta_of_code
from ..logs.setup import elapsed_ms, exception_fields, log_context, problem_fields
from ..telemetry.tracing import UNTRACED
from .openapi import ERROR_RESPONSES, lift_definitions
from .query_parameters import known_parameters, refuse_parameters_beside, refuse_unknown_parameters
from .request_metrics import INTERNAL_PATHS, RequestMetrics, is_stream
from .request_spans import RequestSpans

logger = logging.getLogger(__name__)

_READY_LOOK_SECONDS = 0.05
_REQUEST_ID = re.compile(r"^[A-Za-z0-9._:-]{1,128}$")
# Polled several times a second during an outage: their requests are logged at DEBUG only.
_PROBES = ("/health", "/ready")

# The key of a scope that holds the meta of the request's log line.
_LOG_META = "fleet_log_meta"

# Locations of a field, besides the body.
_PLACES = ("query", "path", "header", "cookie")
_LONGEST_NAME = 64

# The kind of entity that a request's log line names, by path parameter.
_ENTITIES = {
    "run_id": "run",
    "flow_name": "flow",
    "worker_id": "worker",
    "wheel_name": "wheel",
    "key_id": "key",
    "letter_id": "letter",
}

# Missing dependencies of a service: the name of each, and a sentence why. Empty means ready.
Readiness = Callable[[], Awaitable[dict[str, str]]]
Express = Callable[[Request], Awaitable[Response]]
OnError = Callable[[Request, Exception], Awaitable[Response]]
# Updates gauges that need a query, before a scrape.
Refresh = Callable[[], Awaitable[None]]


def new_router(prefix: str = "") -> APIRouter:
    """A router for `create_app`: its routes refuse unknown query parameters, and document the error envelope."""
    return APIRouter(prefix=prefix, dependencies=[Depends(refuse_unknown_parameters)], responses=ERROR_RESPONSES)


def create_app(
    *,
    component: str,
    routers: Sequence[APIRouter],
    lifespan: Lifespan[FastAPI],
    readiness: Readiness,
    registry: CollectorRegistry,
    refresh: Refresh | None = None,
    invalid_request: Problem = Problem.INVALID_REQUEST,
    express: Mapping[tuple[str, str], Express] | None = None,
    untraced: frozenset[str] = frozenset(),
) -> "ServiceApp":
    """Build a service. `registry` counts its requests; GET /metrics shows it to an internal scraper.

    `express` maps a method and a path of the routers to a function that bypasses the framework: the same answer, for
    the few requests that come thousands of times a second. `untraced` paths have no spans.
    """
    metrics, spans = RequestMetrics(registry, component=component), RequestSpans(untraced)
    app = ServiceApp(
        title=f"pyoco-fleet {component}",
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        # The framework's own spans would duplicate ours, and trace every probe.
        telemetry={"tracing": False, "metrics": False, "logs": False, "auto_configure": False},
    )
    app.readiness, app.request_metrics, app.express = readiness, metrics, {}
    all_routers = [*routers, _internal_routes(readiness, registry, refresh)]
    for router in all_routers:
        assert any(one.dependency is refuse_unknown_parameters for one in router.dependencies), "made by new_router"
        # `include_router` would build every route once more, for a quarter of a second of CPU time.
        app.router.routes.extend(router.routes)

    async def on_invalid_request(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        fields = [
            {"field": ".".join(str(part) for part in e["loc"] if part != "body"), "reason": e["msg"]}
            for e in error.errors()[:20]
        ]
        sentence = "; ".join(f"{f['field'] or 'body'}: {f['reason']}" for f in fields)
        problem = getattr(request.scope.get("endpoint"), "invalid_request", invalid_request)
        # Names only: the values belong to the caller and are not logged.
        names = list(dict.fromkeys(_field_name(f["field"]) for f in fields))
        request.scope[_LOG_META] = {"detail": problem.message, "fields": names}
        return error_response(
            request, status=problem.http_status or 422, problem=problem, message=sentence, fields=fields
        )

    async def on_http_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        response = error_response(request, status=error.status_code, message=str(error.detail))
        response.headers.update(error.headers or {})
        if error.status_code == 405:
            # The framework lists the methods of the first route of this path only.
            response.headers["allow"] = ", ".join(_methods_of(all_routers, request.url.path))
        return response

    async def on_fleet_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, FleetError)
        meta = failure_meta(error, resource=request.scope["path"])
        request.scope[_LOG_META] = meta
        if error.http_status >= 500:
            ids = problem_fields(error.problem) if error.problem else {}
            # 503 is an outage: a traceback for every request would add nothing.
            is_news = error.http_status != 503
            extra = {**ids, **({} if is_news else exception_fields(error)), "meta": {**error.meta, **meta}}
            logger.error("%s", error.message, exc_info=error if is_news else None, extra=extra)
        return fleet_error_response(request, error)

    app.add_exception_handler(RequestValidationError, on_invalid_request)
    app.add_exception_handler(HTTPException, on_http_error)
    app.add_exception_handler(FleetError, on_fleet_error)
    app.add_middleware(RequestMiddleware, metrics=metrics, spans=spans)
    on_errors = {FleetError: on_fleet_error, RequestValidationError: on_invalid_request}
    for (method, path), answer in (express or {}).items():
        lane = _express_lane(path, answer, on_errors, parameters=_parameters_of(all_routers, method, path))
        app.express[method, path] = RequestMiddleware(lane, metrics, spans)
    return app


def listen_when_ready(app: "ServiceApp", *, within_seconds: float) -> None:
    """Delay listening until the service is ready or the time is over: until then another replica answers."""
    begin = app.router.lifespan_context

    @asynccontextmanager
    async def begin_ready(started: FastAPI) -> AsyncIterator[None]:
        async with begin(started):
            deadline = time.monotonic() + within_seconds
            while await app.readiness():
                if time.monotonic() > deadline:
                    break
                await asyncio.sleep(_READY_LOOK_SECONDS)
            yield

    app.router.lifespan_context = begin_ready


class ServiceApp(FastAPI):
    """FastAPI with a bypass for a few busy routes: its layers cost as much as their answers."""

    readiness: Readiness
    request_metrics: RequestMetrics
    express: dict[tuple[str, str], ASGIApp]

    def openapi(self) -> dict[str, Any]:
        if not self.openapi_schema:
            lift_definitions(super().openapi())
        assert self.openapi_schema is not None
        return self.openapi_schema

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = self.express.get((scope["method"], scope["path"])) if scope["type"] == "http" else None
        if answer is None:
            await super().__call__(scope, receive, send)
            return
        scope["app"] = self
        await answer(scope, receive, send)


class JsonResponse(JSONResponse):
    def render(self, content: Any) -> bytes:
        return orjson.dumps(content)


def sse_event(kind: str, data: bytes, *, event_id: int | str | None = None) -> bytes:
    """One server-sent event; `data` is JSON on a single line."""
    head = b"" if event_id is None else f"id: {event_id}\n".encode()
    return head + b"event: %b\ndata: %b\n\n" % (kind.encode(), data)


def answers_invalid_requests_with(problem: Problem) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorate a route whose invalid input has its own problem id."""

    def mark(endpoint: Callable[..., Any]) -> Callable[..., Any]:
        endpoint.invalid_request = problem  # type: ignore[attr-defined]
        return endpoint

    return mark


def error_response(
    request: Request, *, status: int, message: str, problem: Problem | None = None, **meta: Any
) -> JsonResponse:
    request_id = request.scope.get("fleet_request_id")
    body = envelope(status=status, message=message, request_id=request_id, problem=problem, **meta)
    return JsonResponse(body, status_code=status)


def fleet_error_response(request: Request, error: FleetError) -> JsonResponse:
    return error_response(
        request, status=error.http_status, message=error.message, problem=error.problem, **error.meta
    )


class RequestMiddleware:
    """Gives every request an id, returns it, counts, traces and logs the request, turns a crash into an envelope."""

    def __init__(self, app: ASGIApp, metrics: RequestMetrics, spans: RequestSpans | None = None) -> None:
        self._app = app
        self._metrics = metrics
        self._spans = spans

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = _request_id(scope)
        scope["fleet_request_id"] = request_id
        begun = time.perf_counter()
        status = 0
        streams = False
        metrics = None if scope["path"] in INTERNAL_PATHS else self._metrics

        async def send_with_id(message: Message) -> None:
            nonlocal status, streams
            if message["type"] == "http.response.start":
                status = message["status"]
                if metrics is not None and is_stream(message):
                    streams = True
                    metrics.stream_opened(scope)
                message["headers"] = [*message["headers"], (b"x-request-id", request_id.encode())]
            await send(message)

        traced = UNTRACED if self._spans is None else self._spans.begin(scope, request_id)
        with log_context(request_id=request_id), traced:
            try:
                await self._app(scope, receive, send_with_id)
            except Exception as error:
                scope[_LOG_META] = failure_meta(error)
                logger.exception("unexpected failure of %s %s", scope["method"], scope["path"])
                if status == 0:
                    body = envelope(status=500, message="internal error", request_id=request_id, retryable=False)
                    await JsonResponse(body, status_code=500)(scope, receive, send_with_id)
            finally:
                if metrics is not None:
                    metrics.answered(scope, status, time.perf_counter() - begun, streamed=streams)
                if self._spans is not None:
                    self._spans.answered(traced, scope, status)
            level = logging.ERROR if status >= 500 else logging.INFO if status >= 400 else logging.DEBUG
            if scope["path"] in _PROBES:
                level = logging.DEBUG
            if logger.isEnabledFor(level):
                log_request(
                    logger,
                    level,
                    method=scope["method"],
                    path=scope["path"],
                    status_code=status,
                    duration_ms=elapsed_ms(begun),
                    entity_id=_entity_id(scope),
                    meta=_failure_meta(scope, status),
                )


def _express_lane(
    path: str, answer: Express, on_errors: Mapping[type[Exception], OnError], *, parameters: frozenset[str]
) -> ASGIApp:
    """Answers one route with one function past the framework; errors are handled as in every other route."""

    async def lane(scope: Scope, receive: Receive, send: Send) -> None:
        scope["fleet_route"] = path
        request = Request(scope, receive, send)
        try:
            if scope["query_string"]:
                refuse_parameters_beside(parameters, request)
            response = await answer(request)
        except tuple(on_errors) as error:
            on_error = next(on_error for kind, on_error in on_errors.items() if isinstance(error, kind))
            response = await on_error(request, error)
        await response(scope, receive, send)

    return lane


def _parameters_of(routers: Sequence[APIRouter], method: str, path: str) -> frozenset[str]:
    every = (route for router in routers for route in router.routes if isinstance(route, APIRoute))
    return next(known_parameters(route) for route in every if route.path == path and method in (route.methods or ()))


def _methods_of(routers: Sequence[APIRouter], path: str) -> list[str]:
    every = (route for router in routers for route in router.routes if isinstance(route, Route))
    routes = (route for route in every if route.path_regex.match(path))
    return sorted({method for route in routes for method in route.methods or ()})


def _request_id(scope: Scope) -> str:
    given = Headers(scope=scope).get(HEADER_REQUEST_ID, "")
    return given if _REQUEST_ID.match(given) else uuid.uuid4().hex


def _field_name(place: str) -> str:
    """`tags` for `tags.0`, `query.limit` unchanged: deeper parts may be taken from the request's content."""
    first, _, rest = place.partition(".")
    name = f"{first}.{rest.partition('.')[0]}" if first in _PLACES and rest else first
    return name[:_LONGEST_NAME]


def _failure_meta(scope: Scope, status: int) -> dict[str, Any]:
    if status < 400:
        return {}
    code = ErrorCode(code_of_status(status))
    meta = meta_of_code(code, dependency_status=str(status), resource=scope["path"])
    return {**meta, **scope.get(_LOG_META, {})}


def _entity_id(scope: Scope) -> str:
    for name, value in scope.get("path_params", {}).items():
        if (kind := _ENTITIES.get(name)) is not None:
            return f"{kind}:{value}"
    return ""


def _internal_routes(readiness: Readiness, registry: CollectorRegistry, refresh: Refresh | None) -> APIRouter:
    router = new_router()

    @router.get("/health")
    async def health() -> dict[str, Any]:
        """The process is up; it is degraded while it waits for what is listed."""
        missing = await readiness()
        return {"status": "degraded" if missing else "ok", "waiting_for": missing}

    @router.get("/ready")
    async def ready() -> Response:
        """Ready to serve: the readiness probe for supervisors."""
        missing = await readiness()
        return JsonResponse(
            {"status": "waiting" if missing else "ready", "waiting_for": missing},
            status_code=503 if missing else 200,
        )

    @router.get("/metrics")
    async def metrics() -> Response:
        """The metrics of this process, for a Prometheus of the operator; answered during outages, too."""
        if refresh is not None:
            await refresh()
        # In a thread: rendering a few thousand lines takes some milliseconds, and requests are served meanwhile.
        text = await asyncio.to_thread(generate_latest, registry)
        return Response(text, media_type=CONTENT_TYPE_PLAIN_0_0_4)

    return router
