"""Is a part healthy? Each check tells why it is not, in a few words, or None when it is."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from urllib.parse import urlsplit

import httpx
from pydantic import TypeAdapter, ValidationError

from fleet_contracts.names import ANONYMOUS_TENANT, HEADER_TENANT_ID
from fleet_contracts.status import ACTIVE_WORKER_STATES
from fleet_contracts.worker_record import WorkerRecord

# Given the moment (unix time) at which the part's process was started.
Check = Callable[[float], Awaitable[str | None]]

_TIMEOUT_SECONDS = 3.0
_DEFAULT_PORTS = {"nats": 4222, "tls": 4222, "ws": 80, "wss": 443}
_RECORDS = TypeAdapter(list[WorkerRecord])


def nats_answers(url: str) -> Check:
    async def check(_: float) -> str | None:
        return await why_nats_is_away(url)

    return check


async def why_nats_is_away(url: str) -> str | None:
    parts = urlsplit(url)
    port = parts.port or _DEFAULT_PORTS[parts.scheme]
    try:
        async with asyncio.timeout(_TIMEOUT_SECONDS):
            reader, writer = await asyncio.open_connection(parts.hostname, port)
            try:
                # A NATS server speaks first; behind a web socket the client does.
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


def without_password(url: str) -> str:
    """An address that may be shown."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def service_is_ready(socket: Path) -> Check:
    client = _client(socket)

    async def check(_: float) -> str | None:
        try:
            answer = await client.get("/ready")
        except httpx.HTTPError:
            return "does not answer yet"
        return None if answer.status_code == httpx.codes.OK else _waiting_for(answer)

    return check


def gateway_serves(url: str) -> Check:
    client = _client(None, base_url=url)

    async def check(_: float) -> str | None:
        try:
            answer = await client.get("/health")
        except httpx.HTTPError:
            return "does not answer yet"
        return None if answer.status_code == httpx.codes.OK else f"answers {answer.status_code} to GET /health"

    return check


def worker_is_registered(workers_api: Path, worker_id: str) -> Check:
    """Its record says so, and was written by the process that was started then, not by an earlier one."""
    client = _client(workers_api)

    async def check(process_started_at: float) -> str | None:
        try:
            answer = await client.get("/workers", params={"scope": "all", "include_hidden": "true", "limit": 500})
            answer.raise_for_status()
            records = _RECORDS.validate_json(answer.content)
        except (httpx.HTTPError, ValidationError):
            return "workers-api does not tell yet"
        mine = next((record for record in records if record.worker_id == worker_id), None)
        if mine is None or mine.last_seen_at < process_started_at:
            return "not registered yet"
        return None if mine.state in ACTIVE_WORKER_STATES else f"registered as {mine.state}"

    return check


def _client(socket: Path | None, base_url: str = "http://part") -> httpx.AsyncClient:
    # Every check makes a connection of its own: that the part accepts one is part of being healthy.
    transport = httpx.AsyncHTTPTransport(
        uds=str(socket) if socket else None, verify=False, limits=httpx.Limits(max_keepalive_connections=0)
    )
    return httpx.AsyncClient(
        transport=transport,
        base_url=base_url,
        headers={HEADER_TENANT_ID: ANONYMOUS_TENANT},
        timeout=_TIMEOUT_SECONDS,
    )


def _waiting_for(answer: httpx.Response) -> str:
    try:
        reasons = answer.json()["waiting_for"].items()
    except (json.JSONDecodeError, KeyError, TypeError, AttributeError):
        return f"answers {answer.status_code} to GET /ready"
    return "; ".join(f"{part}: {reason}" for part, reason in reasons)
