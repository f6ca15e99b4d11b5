"""OpenTelemetry set-up: a tracer that exports when an OTLP endpoint is configured and costs nothing otherwise."""

import os
from typing import TYPE_CHECKING

from opentelemetry import trace

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider


def configure_tracing(component: str) -> "TracerProvider | None":
    """Install a tracer provider if the standard OTEL_* variables name an endpoint; None means no-op."""
    wanted = os.environ.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") or os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT")
    if not wanted or os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return None
    # Imported here: SDK and exporter cost a good part of a service's start time, and most stacks run without.
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    provider = TracerProvider(resource=Resource.create({"service.name": f"pyoco-fleet-{component}"}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)
    return provider


def tracer(component: str) -> trace.Tracer:
    return trace.get_tracer(f"pyoco-fleet-{component}")
