"""A request as data, and how its answer is read: what the blocking and the asynchronous client share."""

import json
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any, Generic, TypeVar
from urllib.parse import quote

from .errors import BadAnswer, BadRequest, FleetError, of_status

T = TypeVar("T")
U = TypeVar("U")

_IDEMPOTENT = frozenset({"GET", "HEAD", "OPTIONS", "PUT", "DELETE"})
_LONGEST_KEY = 255
_REPEATABLE_STATUSES = frozenset({429, 502, 503, 504})


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes
    # For errors: what was asked, and of whom.
    asked: str = ""

    def json(self) -> Any:
        try:
            return json.loads(self.body)
        except ValueError as error:
            raise BadAnswer(
                f"the answer to {self.asked} is not JSON: {self.body[:80]!r}; is this the address of a fleet?",
                code="BAD_ANSWER",
                status=self.status,
                request_id=self.headers.get("x-request-id"),
            ) from error

    def text(self) -> str:
        return self.body.decode("utf-8", "replace")


def as_json(answer: Answer) -> Any:
    return answer.json()


def as_text(answer: Answer) -> str:
    return answer.text()


def as_bytes(answer: Answer) -> bytes:
    return answer.body


def as_json_or_text(answer: Answer) -> Any:
    if not answer.body:
        return None
    return answer.json() if "json" in answer.headers.get("content-type", "") else answer.text()


@dataclass(frozen=True)
class Call(Generic[T]):
    method: str
    # As in the OpenAPI document, for example /runs/{run_id}.
    route: str
    read: Callable[[Answer], T]
    place: Mapping[str, Any] = field(default_factory=dict)
    params: Mapping[str, Any] | None = None
    json: Any = None
    form: Mapping[str, Any] | None = None
    files: Mapping[str, tuple[str, Any, str]] | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    # Whether doing it twice is as good as doing it once. None: as its method says.
    repeatable: bool | None = None

    @property
    def path(self) -> str:
        return self.route.format_map({name: quote(str(value), safe="") for name, value in self.place.items()})

    @property
    def may_repeat(self) -> bool:
        if self.repeatable is not None:
            return self.repeatable
        return self.method in _IDEMPOTENT or "Idempotency-Key" in self.headers

    def then(self, further: Callable[[T], U]) -> "Call[U]":
        read = self.read
        return replace(self, read=lambda answer: further(read(answer)))  # type: ignore[arg-type, return-value]


def given(**values: Any) -> dict[str, Any]:
    """The values that are not None, in the form in which queries and bodies take them."""
    return {name: wire_value(value) for name, value in values.items() if value is not None}


def wire_value(value: Any) -> Any:
    if isinstance(value, datetime):
        return (value if value.tzinfo else value.astimezone()).timestamp()
    if isinstance(value, timedelta):
        return value.total_seconds()
    return value


def idempotency(key: str | None) -> dict[str, str]:
    """Every submit has a key, so that it can be sent again when it is not known whether it arrived."""
    key = key or str(uuid.uuid4())
    if not (key.isascii() and key.isprintable() and key == key.strip() and len(key) <= _LONGEST_KEY):
        raise BadRequest(f"an idempotency key has up to {_LONGEST_KEY} printable ASCII characters, unlike {key!r}")
    return {"Idempotency-Key": key}


def error_of(answer: Answer) -> FleetError:
    """The exception for an answer from 300 on, whoever sent it."""
    try:
        body = json.loads(answer.body)
    except ValueError:
        body = None
    envelope = _object(body)
    said = _object(envelope.get("error"))
    meta = _object(said.get("meta"))
    message = said.get("message") or envelope.get("detail")
    if answer.status < 400:
        # Not followed: it would take the key to wherever it leads.
        elsewhere = answer.headers.get("location")
        message = f"{answer.asked} was redirected to {elsewhere!r}; is this the whole address of the fleet?"
    return of_status(answer.status)(
        str(message or f"{answer.asked} was answered with HTTP {answer.status}"),
        code=said.get("code"),
        err_id=meta.get("err_id"),
        request_id=meta.get("request_id") or answer.headers.get("x-request-id"),
        status=answer.status,
        retryable=bool(meta.get("retryable", answer.status in _REPEATABLE_STATUSES)),
        retry_after=_seconds(answer.headers.get("retry-after")),
        meta=meta,
    )


def _object(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _seconds(retry_after: str | None) -> float | None:
    """The header Retry-After: seconds, or a date."""
    if retry_after is None:
        return None
    try:
        return max(0.0, float(retry_after))
    except ValueError:
        pass
    try:
        moment = parsedate_to_datetime(retry_after)
    except (ValueError, OverflowError):
        return None
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return max(0.0, (moment - datetime.now(UTC)).total_seconds())
