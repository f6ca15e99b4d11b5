"""OTEL_* variables decide whether a process exports spans; without them no SDK is loaded."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping

import pytest

from fleet_kit.settings import SettingsError
from fleet_kit.telemetry.setup import configure_tracing
from fleet_kit.telemetry.tracing import is_recording

ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
# Nobody listens there, and none of these tests needs anybody to.
NOWHERE = {ENDPOINT: "http://127.0.0.1:1"}


@pytest.fixture(autouse=True)
def no_endpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.startswith("OTEL_"):
            monkeypatch.delenv(name)


def in_a_process(script: str, env: Mapping[str, str]) -> "subprocess.CompletedProcess[str]":
    """The provider of a process can be set only once, so each of these has one of its own."""
    return subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, **env},
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )


def resource_with(env: Mapping[str, str]) -> dict[str, str]:
    script = """
import json
from fleet_kit.telemetry.setup import configure_tracing
print(json.dumps(dict(configure_tracing("test").resource.attributes)))
"""
    answer: dict[str, str] = json.loads(in_a_process(script, NOWHERE | env).stdout)
    return answer


@pytest.mark.parametrize(
    "env",
    [
        {},
        {ENDPOINT: ""},
        {**NOWHERE, "OTEL_SDK_DISABLED": "true"},
        {**NOWHERE, "OTEL_TRACES_EXPORTER": "none"},
    ],
)
def test_nothing_is_recorded_unless_one_is_asked_for(env: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    assert configure_tracing("test") is None
    assert not is_recording()


@pytest.mark.parametrize(
    ("env", "sentence"),
    [
        (
            {**NOWHERE, "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"},
            "OTEL_EXPORTER_OTLP_PROTOCOL='grpc' is not allowed: only http/protobuf is spoken here",
        ),
        (
            {
                **NOWHERE,
                "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
                "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/json",
            },
            "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL='http/json' is not allowed: only http/protobuf is spoken here",
        ),
        (
            {"OTEL_TRACES_EXPORTER": "zipkin"},
            "OTEL_TRACES_EXPORTER='zipkin' is not allowed: use otlp, console or none",
        ),
    ],
)
def test_what_cannot_be_done_is_refused_with_a_sentence(
    env: dict[str, str], sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SettingsError) as refusal:
        configure_tracing("test")
    assert str(refusal.value) == sentence


def test_without_an_endpoint_neither_sdk_nor_exporter_is_loaded() -> None:
    script = """
import sys
import fleet_kit.http.serve, fleet_kit.nats.link, fleet_kit.telemetry.setup
assert fleet_kit.telemetry.setup.configure_tracing("test") is None
costly = ("opentelemetry.sdk", "opentelemetry.exporter")
print([name for name in sys.modules if name.startswith(costly)])
"""
    assert in_a_process(script, {}).stdout.strip() == "[]"


def test_spans_say_which_process_of_which_release_made_them() -> None:
    resource, other = resource_with({}), resource_with({})
    assert (resource["service.name"], resource["service.namespace"]) == ("pyoco-fleet-test", "pyoco-fleet")
    assert resource["service.version"][0].isdigit()
    assert resource["service.instance.id"] != other["service.instance.id"]


def test_the_environment_may_say_it_otherwise() -> None:
    named = "service.namespace=acme,deployment.environment.name=prod"
    resource = resource_with({"OTEL_SERVICE_NAME": "runs", "OTEL_RESOURCE_ATTRIBUTES": named})
    assert (resource["service.name"], resource["service.namespace"]) == ("runs", "acme")
    assert resource["deployment.environment.name"] == "prod"
    assert resource["service.instance.id"]


@pytest.mark.parametrize(("sampler", "is_sampled"), [("always_off", False), ("always_on", True)])
def test_the_sampler_is_the_one_that_is_named(sampler: str, is_sampled: bool) -> None:
    script = """
from fleet_kit.telemetry.setup import configure_tracing
from fleet_kit.telemetry.tracing import current, span
configure_tracing("test")
with span("work", begins_trace=True):
    print(current().is_sampled)
"""
    assert in_a_process(script, NOWHERE | {"OTEL_TRACES_SAMPLER": sampler}).stdout.strip() == str(is_sampled)


def test_spans_on_a_terminal_are_lines_beside_the_log() -> None:
    script = """
from fleet_kit.telemetry.setup import configure_tracing, stop_tracing
from fleet_kit.telemetry.tracing import span
tracing = configure_tracing("test")
with span("work", {"pyoco.run.id": "r1"}, begins_trace=True):
    pass
stop_tracing(tracing)
"""
    said = in_a_process(script, {"OTEL_TRACES_EXPORTER": "console"})
    assert said.stdout == ""
    [line] = said.stderr.splitlines()
    assert json.loads(line)["attributes"] == {"pyoco.run.id": "r1"}
