"""Asks the routes of a fleet, all at once, and keeps what each answered or why it did not."""

import asyncio
import re
import ssl
import time
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from ...calls import Answer, Call
from ...config import Server
from ...errors import BadAnswer, FleetError, Forbidden, NotAuthenticated, Unavailable, WaitTimeout
from ...http_client import AsyncPyocoHttpClient
from ...routes import administration, dead_letters, runs, wheels, workers
from ...transport import Retries
from ..texts import t

# Of each of the two rounds: the second asks single workers.
ROUND_SECONDS = 2.5
WAITING_RUNS = 200
WORKERS = 500
DETAILS = 20
_LIVE = frozenset({"RUNNING", "IDLE"})
_NATS_AWAY = "ERR-PYOCO-0003"
_KEY = re.compile(r"pyoco_([A-Za-z0-9-]{1,64})_[A-Za-z0-9_-]{32,128}")

# What each route needs if the gateway asks for a key.
SCOPES = {
    "runs": "runs:read",
    "letters": "runs:read",
    "workers": "workers:read",
    "flows": "workers:read",
    "wheels": "wheels:read",
    "metrics": "metrics:read",
    "auth": "admin",
}
# What the answers of a fleet have; anything else may answer at the address.
_MEMBERS = {
    "health": {"status", "waiting_for"},
    "runs": {"items", "next_cursor"},
    "flows": {"flows", "broken", "reload_failures", "open_tags"},
    "letters": {"items", "total_open"},
}
_OF_WORKER = {"worker_id", "state", "tags", "slots", "hidden", "draining", "last_seen_at"}


@dataclass(frozen=True)
class Reply:
    """What a route has answered, or the error."""

    value: Any = None
    error: FleetError | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    # The moment in the middle of the request, and how long it took.
    at: float = 0.0
    seconds: float = 0.0

    @property
    def missing_scope(self) -> str | None:
        """The service itself has answered: the key lacks this scope."""
        return self.error.meta.get("missing_scope") if isinstance(self.error, Forbidden) else None

    @property
    def is_refused(self) -> bool:
        """The key is unknown, revoked or expired."""
        return isinstance(self.error, Forbidden) and self.error.status == 403 and not self.missing_scope

    @property
    def wants_key(self) -> bool:
        return isinstance(self.error, NotAuthenticated)

    @property
    def says_nats_is_away(self) -> bool:
        return self.error is not None and self.error.err_id == _NATS_AWAY

    @property
    def is_away(self) -> bool:
        """No answer came, or one of the gateway or of the service that it cannot work."""
        if self.error is None or self.says_nats_is_away:
            return False
        return self.error.status is None or isinstance(self.error, Unavailable)


@dataclass(frozen=True)
class Certificate:
    not_after: float | None = None
    error: str | None = None


@dataclass(frozen=True)
class Replies:
    of: Mapping[str, Reply]
    details: Sequence[Mapping[str, Any]]
    certificate: Certificate | None

    def __getitem__(self, name: str) -> Reply:
        return self.of[name]

    @property
    def live_workers(self) -> list[Any]:
        return live(self.of["workers"])

    @property
    def guarded(self) -> list[Reply]:
        """Those of the routes that may need a key."""
        return [reply for name, reply in self.of.items() if name != "health"]


def live(reply: Reply) -> list[Any]:
    return [worker for worker in reply.value or () if worker["state"] in _LIVE]


async def ask_all(server: Server) -> Replies:
    calls: dict[str, Call[Any]] = {
        "health": administration.get_health(),
        "runs": runs.list_runs_vnext(status="PENDING", limit=WAITING_RUNS, cursor=""),
        "workers": workers.get_workers(scope="all", include_hidden=True, limit=WORKERS),
        "wheels": wheels.list_wheel_history(limit=1),
        "flows": workers.list_flows(),
        "letters": dead_letters.list_dead_letters(limit=1),
        "metrics": administration.get_metrics(),
        "auth": _own_key(server.api_key),
    }
    options: dict[str, Any] = {"timeout": ROUND_SECONDS, "retries": Retries(attempts=1)}
    async with AsyncPyocoHttpClient.of(server, **options) as client:
        asking = asyncio.gather(*(_ask(name, client.call(_whole(call))) for name, call in calls.items()))
        certificate, replies = await asyncio.gather(_certificate(server.url), asking)
        of = dict(zip(calls, replies, strict=True))
        asked = [workers.get_worker(worker["worker_id"]) for worker in live(of["workers"])[:DETAILS]]
        details = await asyncio.gather(*(_ask("worker", client.call(_whole(call))) for call in asked))
    return Replies(of, [reply.value for reply in details if reply.value], certificate)


def _own_key(key: str | None) -> Call[Any]:
    """What auth says of the caller's key; also to callers that may not know it is a sign of life."""
    known = _KEY.fullmatch(key or "")
    return administration.get_key(known[1]) if known else administration.list_keys(limit=1)


def _whole(call: Call[Any]) -> Call[tuple[Any, Answer]]:
    return Call(
        call.method,
        call.route,
        lambda answer: (call.read(answer), answer),
        call.place,
        call.params,
    )


async def _ask(name: str, asking: Coroutine[Any, Any, tuple[Any, Answer]]) -> Reply:
    begun, clock = time.time(), time.monotonic()
    try:
        async with asyncio.timeout(ROUND_SECONDS):
            value, answer = await asking
    except TimeoutError:
        return Reply(error=WaitTimeout(t("doctor.silent", seconds=ROUND_SECONDS)))
    except FleetError as error:
        return Reply(error=error)
    if not _is_understood(name, value):
        return Reply(error=BadAnswer(t("doctor.strange"), status=answer.status))
    seconds = time.monotonic() - clock
    return Reply(value, headers=answer.headers, at=begun + seconds / 2, seconds=seconds)


def _is_understood(name: str, value: Any) -> bool:
    if name == "workers":
        return isinstance(value, list) and all(isinstance(one, dict) and one.keys() >= _OF_WORKER for one in value)
    if name in _MEMBERS:
        return isinstance(value, dict) and value.keys() >= _MEMBERS[name]
    return True


async def _certificate(url: str) -> Certificate | None:
    """The certificate of an https address, checked as every request checks it."""
    place = urlsplit(url)
    if place.scheme != "https":
        return None
    try:
        async with asyncio.timeout(ROUND_SECONDS):
            context = ssl.create_default_context()
            _, writer = await asyncio.open_connection(place.hostname, place.port or 443, ssl=context)
    except ssl.SSLCertVerificationError as error:
        return Certificate(error=error.verify_message)
    except (OSError, TimeoutError) as error:
        return Certificate(error=str(error) or t("doctor.silent", seconds=ROUND_SECONDS))
    try:
        return Certificate(ssl.cert_time_to_seconds(writer.get_extra_info("peercert")["notAfter"]))
    finally:
        writer.close()
