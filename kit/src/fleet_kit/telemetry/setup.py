"""OpenTelemetry set-up by the standard OTEL_* variables: spans are exported if they say where to, else never made."""

import logging
import os
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

from ..build import release
from ..settings import SettingsError
from .tracing import record_with

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter

logger = logging.getLogger(__name__)

_NAMESPACE = "pyoco-fleet"
# What a collector that does not answer may cost whoever stops this process.
_FLUSH_SECONDS = 2.0
_REPEAT_COMPLAINT_SECONDS = 60.0
_SPOKEN = "http/protobuf"


class Tracing:
    """Spans on their way out."""

    def __init__(self, provider: "TracerProvider") -> None:
        self.provider = provider

    def shutdown(self) -> None:
        """Send what is left, if it can be sent quickly."""
        record_with(None)
        # In a thread: the library waits for the collector as long as for any other export.
        flushing = threading.Thread(target=self.provider.shutdown, name="last-spans", daemon=True)
        flushing.start()
        flushing.join(_FLUSH_SECONDS)
        if flushing.is_alive():
            logger.warning("the last spans could not be exported within %g s and are lost", _FLUSH_SECONDS)


def configure_tracing(component: str) -> Tracing | None:
    """Record and export spans if the environment says where to; None: nobody does.

    SettingsError if it says something that cannot be done.
    """
    exporter = _wanted_exporter()
    if exporter is None:
        return None
    try:
        return _begin(component, exporter)
    except ValueError as error:
        # The library reads its variables itself; most of what it cannot use it only complains about.
        raise SettingsError(f"what the OTEL_* variables say cannot be used: {error}") from error


def _begin(component: str, exporter: "Callable[[], SpanExporter]") -> Tracing:
    # Imported here and nowhere else: this costs a good part of a process's start, and most stacks run without.
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    from .recording import HashedOnce, SpanRecorder

    _limit_exporter_log()
    provider = TracerProvider(resource=HashedOnce(_resource(component)), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(exporter()))
    trace.set_tracer_provider(provider)
    record_with(SpanRecorder(provider.get_tracer(_NAMESPACE, release())))
    return Tracing(provider)


def believes_clients() -> bool:
    """A client's trace context is continued, unless OTEL_PROPAGATORS leaves it out."""
    named = os.environ.get("OTEL_PROPAGATORS") or "tracecontext"
    return "tracecontext" in (name.strip().lower() for name in named.split(","))


def _wanted_exporter() -> "Callable[[], SpanExporter] | None":
    if _env("OTEL_SDK_DISABLED").lower() == "true":
        return None
    endpoint = _env("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") or _env("OTEL_EXPORTER_OTLP_ENDPOINT")
    # By the standard a collector on this machine is the default; we want to be asked.
    match _env("OTEL_TRACES_EXPORTER").lower() or ("otlp" if endpoint else "none"):
        case "none":
            return None
        case "console":
            return _console
        case "otlp":
            for name in ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"):
                if (protocol := _env(name)) and protocol.lower() != _SPOKEN:
                    raise SettingsError(f"{name}={protocol!r} is not allowed: only {_SPOKEN} is spoken here", name)
                if protocol:
                    break
            return _otlp
        case other:
            name = "OTEL_TRACES_EXPORTER"
            raise SettingsError(f"{name}={other!r} is not allowed: use otlp, console or none", name)


def _env(name: str) -> str:
    return os.environ.get(name, "").strip()


def _otlp() -> "SpanExporter":
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    return OTLPSpanExporter()


def _console() -> "SpanExporter":
    from opentelemetry.sdk.trace.export import ConsoleSpanExporter

    # One line each, beside the log and not in it.
    return ConsoleSpanExporter(out=sys.stderr, formatter=lambda span: f"{span.to_json(indent=None)}\n")


def _resource(component: str) -> "Resource":
    from opentelemetry.sdk.resources import Resource

    own = {
        "service.name": f"{_NAMESPACE}-{component}",
        "service.namespace": _NAMESPACE,
        "service.version": release(),
        "service.instance.id": uuid.uuid4().hex,
    }
    # What OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES say wins.
    told = Resource.create()
    said = {name for name, value in told.attributes.items() if not str(value).startswith("unknown_service")}
    return told.merge(Resource({name: value for name, value in own.items() if name not in said}))


def _limit_exporter_log() -> None:
    """A collector that is away is told by the library with every batch: say it now and then, in our own log."""
    library = logging.getLogger("opentelemetry")
    library.propagate = False
    library.handlers[:] = [_RateLimitedHandler()]
    # The library's client underneath says the same once more.
    logging.getLogger("urllib3").setLevel(logging.ERROR)


class _RateLimitedHandler(logging.Handler):
    """By parts of the library: that spans are dropped is told although their exporter has complained before."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._told_at: dict[str, float] = {}
        self._suppressed: Counter[str] = Counter()

    def emit(self, record: logging.LogRecord) -> None:
        now, part = time.monotonic(), record.name
        if part in self._told_at and now - self._told_at[part] < _REPEAT_COMPLAINT_SECONDS:
            self._suppressed[part] += 1
            return
        logger.warning(
            "spans cannot be exported and may be lost: %s",
            record.getMessage(),
            extra={"meta": {"suppressed_lines": self._suppressed.pop(part, 0)}},
        )
        self._told_at[part] = now
