"""For a process that serves no HTTP otherwise: /health, /ready and /metrics on a port of the inside, in a thread."""

import json
import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, make_server

from prometheus_client import CollectorRegistry

from .metrics import CONTENT_TYPE, render

logger = logging.getLogger(__name__)

# What the process waits for: names of parts with a sentence each; empty means ready.
WaitingFor = Callable[[], dict[str, str]]
_Start = Callable[[str, list[tuple[str, str]]], Any]


class MonitorUnusable(Exception):
    """The port cannot be listened on; the message says what to do."""


@contextmanager
def monitored(host: str, port: int, registry: CollectorRegistry, waiting_for: WaitingFor) -> Iterator[int]:
    """Answer whoever watches this process; the port, which may have been chosen by the system."""
    try:
        server = make_server(host, port, _application(registry, waiting_for), handler_class=_QuietHandler)
    except OSError as error:
        raise MonitorUnusable(
            f"cannot listen on {host}:{port} ({error.strerror}); choose another PYOCO_MONITOR_PORT"
        ) from error
    thread = threading.Thread(target=server.serve_forever, name="fleet-monitor", daemon=True)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _application(registry: CollectorRegistry, waiting_for: WaitingFor) -> Callable[[Any, _Start], Iterable[bytes]]:
    def answer(environ: dict[str, Any], start: _Start) -> Iterable[bytes]:
        content_type = "application/json"
        match environ["REQUEST_METHOD"], environ["PATH_INFO"]:
            case "GET", "/metrics":
                status, content_type, body = "200 OK", CONTENT_TYPE, render(registry)
            case "GET", "/health":
                status, body = "200 OK", _json({"status": "ok", "waiting_for": waiting_for()})
            case "GET", "/ready":
                missing = waiting_for()
                status = "503 Service Unavailable" if missing else "200 OK"
                body = _json({"status": "waiting" if missing else "ready", "waiting_for": missing})
            case _:
                status, body = "404 Not Found", _json({"detail": "there is nothing at this address"})
        start(status, [("Content-Type", content_type), ("Content-Length", str(len(body)))])
        return [body]

    return answer


def _json(content: dict[str, Any]) -> bytes:
    return json.dumps(content).encode()


class _QuietHandler(WSGIRequestHandler):
    # Whoever connects and says nothing does not keep the others waiting for ever.
    timeout = 5

    def log_message(self, format: str, *args: Any) -> None:
        logger.debug(format, *args)
