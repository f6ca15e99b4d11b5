"""OpenTelemetry set-up from the standard OTEL_* variables; without an exporter no spans are made."""

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
# How long an unresponsive collector may delay the stop of this process.
_FLUSH_SECONDS = 2.0
_REPEAT_LOG_SECONDS = 60.0
_PROTOCOL = "http/protobuf"


def configure_tracing(component: str) -> "TracerProvider | None":
    """Record and export spans if the environment names an exporter, else return None.

    SettingsError if the variables ask for what is not supported.
    """
    exporter = _wanted_exporter()
    if exporter is None:
        return None
    try:
        # Imported here only: the import takes a good part of a process's start, and most stacks do not trace.
        from opentelemetry import trace
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        _limit_exporter_log()
        provider = TracerProvider(resource=_resource(component), shutdown_on_exit=False)
        provider.add_span_processor(BatchSpanProcessor(exporter()))
    except ValueError as error:
        # The library reads its variables itself, and only logs most of the invalid ones.
        raise SettingsError(f"what the OTEL_* variables say cannot be used: {error}") from error
    trace.set_tracer_provider(provider)
    record_with(provider.get_tracer(_NAMESPACE, release()))
    return provider


def stop_tracing(provider: "TracerProvider | None") -> None:
    """Flush the remaining spans, if that is possible quickly."""
    if provider is None:
        return
    record_with(None)
    # In a thread: the library waits for the collector as long as for any other export.
    flushing = threading.Thread(target=provider.shutdown, name="last-spans", daemon=True)
    flushing.start()
    flushing.join(_FLUSH_SECONDS)
    if flushing.is_alive():
        logger.warning("the last spans could not be exported within %g s and are lost", _FLUSH_SECONDS)


def believes_clients() -> bool:
    """Whether to continue a client's trace context: yes, unless OTEL_PROPAGATORS leaves it out."""
    named = os.environ.get("OTEL_PROPAGATORS") or "tracecontext"
    return "tracecontext" in (name.strip().lower() for name in named.split(","))


def _wanted_exporter() -> "Callable[[], SpanExporter] | None":
    if _env("OTEL_SDK_DISABLED").lower() == "true":
        return None
    endpoint = _env("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") or _env("OTEL_EXPORTER_OTLP_ENDPOINT")
    # OpenTelemetry's default is a collector on this machine; here export is opt-in.
    match _env("OTEL_TRACES_EXPORTER").lower() or ("otlp" if endpoint else "none"):
        case "none":
            return None
        case "console":
            return _console
        case "otlp":
            for name in ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"):
                if (protocol := _env(name)) and protocol.lower() != _PROTOCOL:
                    raise SettingsError(f"{name}={protocol!r} is not allowed: only {_PROTOCOL} is spoken here", name)
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

    # One line per span, on stderr, apart from the log.
    return ConsoleSpanExporter(out=sys.stderr, formatter=lambda span: f"{span.to_json(indent=None)}\n")


def _resource(component: str) -> "Resource":
    from opentelemetry.sdk.resources import OTELResourceDetector, Resource

    own = {
        "service.name": f"{_NAMESPACE}-{component}",
        "service.namespace": _NAMESPACE,
        "service.version": release(),
        "service.instance.id": uuid.uuid4().hex,
    }
    # OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES take precedence.
    return Resource.create(own).merge(OTELResourceDetector().detect())


def _limit_exporter_log() -> None:
    """Rate-limit the library's logging: without a collector it logs a failure for every batch."""
    library = logging.getLogger("opentelemetry")
    library.propagate = False
    library.handlers[:] = [_RateLimitedHandler()]
    # The library's HTTP client logs the same failure again.
    logging.getLogger("urllib3").setLevel(logging.ERROR)


class _RateLimitedHandler(logging.Handler):
    """Rate-limited per library logger: dropped spans are reported even if their exporter has just failed."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._logged_at: dict[str, float] = {}
        self._suppressed: Counter[str] = Counter()

    def emit(self, record: logging.LogRecord) -> None:
        now, part = time.monotonic(), record.name
        if part in self._logged_at and now - self._logged_at[part] < _REPEAT_LOG_SECONDS:
            self._suppressed[part] += 1
            return
        logger.warning(
            "spans cannot be exported and may be lost: %s",
            record.getMessage(),
            extra={"meta": {"suppressed_lines": self._suppressed.pop(part, 0)}},
        )
        self._logged_at[part] = now
