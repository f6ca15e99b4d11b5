"""Health checks of the parts: each returns None if the part is healthy, else a short reason."""

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

from pydantic import SecretStr, TypeAdapter, ValidationError

from fleet_contracts.names import ANONYMOUS_TENANT, HEADER_FROM_GATEWAY, HEADER_SCOPES, HEADER_TENANT_ID
from fleet_contracts.scopes import Scope
from fleet_contracts.status import ACTIVE_WORKER_STATES
from fleet_contracts.worker_record import WorkerRecord

# Takes the unix time at which the part's process was started.
Check = Callable[[float], Awaitable[str | None]]

_TIMEOUT_SECONDS = 3.0
_DEFAULT_PORTS = {"nats": 4222, "tls": 4222, "ws": 80, "wss": 443}
_NO_ANSWER = (OSError, TimeoutError)
_STATUS_LINE = re.compile(rb"HTTP/1\.[01] ([0-9]{3})")
_RECORD = TypeAdapter(WorkerRecord)
_RECORDS = TypeAdapter(list[WorkerRecord])
T = TypeVar("T")


async def why_nats_is_away(url: str) -> str | None:
    parts = urlsplit(url)
    port = parts.port or _DEFAULT_PORTS[parts.scheme]
    try:
        async with asyncio.timeout(_TIMEOUT_SECONDS):
            reader, writer = await asyncio.open_connection(parts.hostname, port)
            try:
                # A NATS server sends INFO first. Over a web socket the client starts, so the connection must do.
                greeting = b"INFO " if parts.scheme.startswith("ws") else await reader.read(5)
            finally:
                writer.close()
    except TimeoutError:
        return "no answer"
    except ConnectionRefusedError:
        return "nothing listens there"
    except OSError as error:
        return error.strerror or str(error)
    return None if greeting == b"INFO " else "what answers is not NATS"


async def service_health(socket: Path, _: float) -> str | None:
    try:
        status, body = await _get(asyncio.open_unix_connection(socket), "/ready")
    except _NO_ANSWER:
        return "does not answer yet"
    return None if status == HTTPStatus.OK else _waiting_for(status, body)


async def gateway_health(url: str, _: float) -> str | None:
    parts = urlsplit(url)
    connecting = asyncio.open_connection(parts.hostname, parts.port)
    try:
        status, _body = await _get(connecting, "/health", host=parts.netloc)
    except _NO_ANSWER:
        return "does not answer yet"
    return None if status == HTTPStatus.OK else f"answers {status} to GET /health"


class WorkerRegistry:
    """Reads the worker registry from workers-api; None if it gives no answer."""

    def __init__(self, workers_api: Path, gateway_secret: SecretStr) -> None:
        self._socket = workers_api
        # The headers that the gateway adds for a caller who may read the workers.
        self._headers = {
            HEADER_FROM_GATEWAY: gateway_secret.get_secret_value(),
            HEADER_TENANT_ID: ANONYMOUS_TENANT,
            HEADER_SCOPES: Scope.WORKERS_READ.value,
        }

    async def all(self) -> list[WorkerRecord] | None:
        """All workers, without flows and machines."""
        return await self._ask("/workers?scope=all&include_hidden=true&limit=500", _RECORDS)

    async def one(self, worker_id: str) -> WorkerRecord | None:
        return await self._ask(f"/workers/{worker_id}", _RECORD)

    async def _ask(self, target: str, answer: TypeAdapter[T]) -> T | None:
        try:
            _, body = await _get(asyncio.open_unix_connection(self._socket), target, self._headers)
            return answer.validate_json(body)
        except (*_NO_ANSWER, ValidationError):
            return None


async def worker_health(registry: WorkerRegistry, worker_id: str, process_started_at: float) -> str | None:
    """Healthy if the worker's record is active and was written by this process, not by an earlier one."""
    if (records := await registry.all()) is None:
        return "workers-api does not answer yet"
    mine = next((record for record in records if record.worker_id == worker_id), None)
    if mine is None or mine.last_seen_at < process_started_at:
        return "not registered yet"
    return None if mine.state in ACTIVE_WORKER_STATES else f"registered as {mine.state}"


async def _get(
    connecting: Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]],
    target: str,
    headers: Mapping[str, str] | None = None,
    *,
    host: str = "fleet",
) -> tuple[int, bytes]:
    """Send one HTTP/1.0 request on a new connection and read the answer until the server closes it.

    No HTTP library is used: importing one would double the time that every command needs to start.
    """
    async with asyncio.timeout(_TIMEOUT_SECONDS):
        reader, writer = await connecting
        try:
            lines = [f"{name}: {value}\r\n" for name, value in (headers or {}).items()]
            writer.write(f"GET {target} HTTP/1.0\r\nHost: {host}\r\n{''.join(lines)}\r\n".encode())
            head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        finally:
            writer.close()
    found = _STATUS_LINE.match(head)
    if found is None:
        raise ConnectionError("no HTTP answer")
    return int(found[1]), body


def _waiting_for(status: int, body: bytes) -> str:
    try:
        reasons = json.loads(body)["waiting_for"].items()
    except (ValueError, KeyError, TypeError, AttributeError):
        return f"answers {status} to GET /ready"
    return "; ".join(f"{part}: {reason}" for part, reason in reasons)
