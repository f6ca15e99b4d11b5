"""The HTTP routes of wheels-api."""

from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from fleet_contracts.wheel import WheelActor, WheelEvent, WheelSource
from fleet_kit.http.app import new_router
from fleet_kit.http.identity import Identity, WheelsReader, WheelsWriter
from fleet_kit.http.openapi import ErrorBody, form_body, refusals
from fleet_kit.nats.link import NatsLink
from fleet_kit.nats.stores.objects import ObjectStore

from .downloading import send
from .errors import UploadAbandoned, VersionNotNewer, WheelNotFound, WheelTooLarge
from .history import History
from .metrics import Metrics
from .registry import Registry
from .schemas import UPLOAD_FORM, Deleted, HistoryQuery, Wheel
from .upload import receive

_LONGEST_HEADER = 256

_NO_WHEEL = refusals(WheelNotFound)
_FILE = {"content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}}
_DOWNLOAD_ANSWERS: dict[int | str, dict[str, Any]] = {
    200: {"description": "The wheel.", **_FILE},
    206: {"description": "The part of it that `Range` asks for.", **_FILE},
    304: {"description": "The caller has it already: `If-None-Match` names its ETag."},
    **_NO_WHEEL,
    416: {"model": ErrorBody, "description": "The wheel has no such part."},
}


def wheels_routes(
    link: NatsLink,
    registry: Registry,
    store: ObjectStore,
    history: History,
    metrics: Metrics,
    *,
    most_bytes: int,
    upload_dir: Path | None,
) -> APIRouter:
    router = new_router()

    @router.get("/wheels")
    async def list_wheels(caller: WheelsReader) -> list[Wheel]:
        """Every registered wheel, by name."""
        link.require()
        return [Wheel.of(stored, store.bucket) for stored in await registry.wheels()]

    @router.post(
        "/wheels",
        responses=refusals(UploadAbandoned, VersionNotNewer, WheelTooLarge),
        openapi_extra=form_body(UPLOAD_FORM),
    )
    async def upload_wheel(request: Request, caller: WheelsWriter) -> Wheel:
        """Register a wheel that is newer than every registered one of its package."""
        link.require()
        async with receive(
            request, most_bytes=most_bytes, folder=upload_dir, check_name=registry.require_newer
        ) as upload:
            stored = await registry.register(upload, _actor(caller), _source(request))
        metrics.uploads.inc()
        metrics.upload_bytes.inc(stored.size)
        return Wheel.of(stored, store.bucket)

    @router.get("/wheels/history")
    async def list_history(
        caller: WheelsReader, response: Response, query: Annotated[HistoryQuery, Query()]
    ) -> list[WheelEvent]:
        """Uploads and deletes, the latest first. `X-Next-Cursor`, if there is more, is the next page's `cursor`."""
        link.require()
        page = await history.page(
            limit=query.limit, before=query.before, wheel_name=query.wheel_name, action=query.action
        )
        if page.before is not None:
            response.headers["X-Next-Cursor"] = str(page.before)
        return page.events

    @router.head("/wheels/{wheel_name}", include_in_schema=False)
    @router.get("/wheels/{wheel_name}", response_class=Response, responses=_DOWNLOAD_ANSWERS)
    async def download_wheel(request: Request, wheel_name: str, caller: WheelsReader) -> Response:
        """The bytes of a wheel; `Range`, `If-Range` and `If-None-Match` are understood."""
        link.require()
        answer = await send(request, store, await registry.find(wheel_name))
        if request.method == "GET" and answer.status_code == 200:
            metrics.downloads.inc()
        return answer

    @router.delete("/wheels/{wheel_name}", responses=_NO_WHEEL)
    async def delete_wheel(request: Request, wheel_name: str, caller: WheelsWriter) -> Deleted:
        """Take a wheel out of the registry; workers drop it at their next sync. The history keeps it."""
        link.require()
        await registry.remove(wheel_name, _actor(caller), _source(request))
        metrics.deletes.inc()
        return Deleted(name=wheel_name, deleted=True)

    return router


def _actor(caller: Identity) -> WheelActor:
    return WheelActor(tenant_id=caller.tenant_id, api_key_id=caller.api_key_id)


def _source(request: Request) -> WheelSource:
    """Where a request came from, by the headers that the gateway sets."""

    def header(name: str) -> str | None:
        value = request.headers.get(name)
        return value[:_LONGEST_HEADER] if value else None

    address = header("x-real-ip")
    return WheelSource(
        remote_addr=address or (request.client.host if request.client else None),
        x_forwarded_for=header("x-forwarded-for"),
        x_real_ip=address,
        user_agent=header("user-agent"),
        host=header("host"),
        scheme=header("x-forwarded-proto") or request.url.scheme,
    )
