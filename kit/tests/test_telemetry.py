"""Tracing costs nothing until an endpoint is named."""

import os
import subprocess
import sys

import pytest

from fleet_kit.telemetry import configure_tracing, tracer

_ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"


@pytest.fixture(autouse=True)
def no_endpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.startswith("OTEL_"):
            monkeypatch.delenv(name)


def test_without_an_endpoint_spans_are_not_recorded() -> None:
    assert configure_tracing("test") is None
    with tracer("test").start_as_current_span("work") as span:
        assert not span.is_recording()


def test_tracing_can_be_switched_off_although_an_endpoint_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(_ENDPOINT, "http://127.0.0.1:1")
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    assert configure_tracing("test") is None


def test_with_an_endpoint_spans_are_recorded_under_the_components_name() -> None:
    # In a process of its own: the provider of a process can be set only once.
    script = """
from fleet_kit.telemetry import configure_tracing, tracer
provider = configure_tracing("test")
assert provider.resource.attributes["service.name"] == "pyoco-fleet-test"
span = tracer("test").start_span("work")
assert span.is_recording()
"""
    # The span is never ended, so nothing is sent and nobody needs to listen there.
    environment = os.environ | {_ENDPOINT: "http://127.0.0.1:1"}
    subprocess.run([sys.executable, "-c", script], env=environment, check=True, timeout=60)
