"""Sends a wheel: whole, a byte range of it, or 304 if the caller has it already."""

import re
from collections.abc import AsyncIterator

from fastapi import Request
from fastapi.responses import Response, StreamingResponse

from fleet_kit.errors import NatsUnavailable
from fleet_kit.http.app import error_response
from fleet_kit.nats.stores.objects import ObjectStore, StoredObject

from .errors import WheelNotFound

_RANGE = re.compile(r"bytes=(\d{0,19})-(\d{0,19})", re.IGNORECASE)


def etag_of(stored: StoredObject) -> str:
    """A strong ETag: the same tag means the same bytes."""
    return f'"{stored.sha256_hex or stored.nuid}"'


async def send(request: Request, store: ObjectStore, stored: StoredObject) -> Response:
    etag = etag_of(stored)
    headers = {
        "ETag": etag,
        "Accept-Ranges": "bytes",
        # A name may come back with other bytes after a delete.
        "Cache-Control": "private, no-cache",
    }
    if _is_among(request.headers.get("if-none-match", ""), etag):
        return Response(status_code=304, headers=headers)
    headers["Content-Disposition"] = f'attachment; filename="{stored.name}"'
    part = _wanted_part(request, stored.size, etag)
    status = 200
    if part is not None:
        if not part:
            answer = error_response(
                request, status=416, message=f"the wheel has {stored.size} bytes; ask for a part of these"
            )
            answer.headers["Content-Range"] = f"bytes */{stored.size}"
            return answer
        status = 206
        headers["Content-Range"] = f"bytes {part.start}-{part.stop - 1}/{stored.size}"
    part = part or range(stored.size)
    headers["Content-Length"] = str(len(part))
    if request.method == "HEAD":
        return Response(status_code=status, headers=headers, media_type="application/octet-stream")
    pieces = store.read(stored, start=part.start, stop=part.stop)
    # Read the first piece before the response begins: a failure up to then can be an error response.
    try:
        first = await anext(pieces, b"")
    except NatsUnavailable as error:
        if await store.find(stored.name) is None:
            raise WheelNotFound(wheel_name=stored.name) from error
        raise
    return StreamingResponse(
        _all_of(first, pieces), status_code=status, headers=headers, media_type="application/octet-stream"
    )


async def _all_of(first: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """If this fails, the connection closes before Content-Length is reached: the client sees a truncated body."""
    yield first
    async for piece in rest:
        yield piece


def _is_among(listed: str, etag: str) -> bool:
    tags = [tag.strip().removeprefix("W/") for tag in listed.split(",")]
    return "*" in tags or etag in tags


def _wanted_part(request: Request, size: int, etag: str) -> range | None:
    """The requested range. None means the whole wheel, also if the header is invalid or has several ranges."""
    found = _RANGE.fullmatch(request.headers.get("range", "").strip())
    # A range is defined for GET only (RFC 9110, 14.2).
    if request.method != "GET" or found is None or request.headers.get("if-range", etag).strip() != etag:
        return None
    first, last = found.groups()
    if first:
        stop = min(int(last) + 1, size) if last else size
        return None if last and int(last) < int(first) else range(int(first), stop)
    return range(max(size - int(last), 0), size) if last else None
