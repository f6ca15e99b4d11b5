"""OTLP collectors that refuse connections, hang or fail, for tests of processes that export to them."""

from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum

from .nats_server import free_port
from .otlp import Receiver


class Broken(StrEnum):
    REFUSES = "refuses the connection"
    HANGS = "takes the spans and never answers"
    FAILS = "answers with 500"


@contextmanager
def broken_collector(how: Broken) -> Iterator[dict[str, str]]:
    """Yield the environment of a process that exports to this collector."""
    if how is Broken.REFUSES:
        yield {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{free_port()}", "OTEL_BSP_SCHEDULE_DELAY": "100"}
        return
    with Receiver(status=500, hangs=how is Broken.HANGS) as receiver:
        yield receiver.env
        # A collector that got no request would have tested nothing.
        assert receiver.requests > 0
