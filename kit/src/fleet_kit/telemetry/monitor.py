"""Serves /health, /ready and /metrics on an internal port, for processes that have no HTTP service."""

import io
import json
import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, CollectorRegistry, generate_latest

logger = logging.getLogger(__name__)

# Missing dependencies: the name of each, and a sentence why. Empty means ready.
WaitingFor = Callable[[], dict[str, str]]
_Start = Callable[[str, list[tuple[str, str]]], Any]
_JSON = "application/json"
_LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")


class MonitorUnusable(Exception):
    """The monitor cannot listen on its port; the message names the remedy."""


@contextmanager
def monitored(host: str, port: int, registry: CollectorRegistry, waiting_for: WaitingFor) -> Iterator[int]:
    """Serve the monitor in a thread; yields its port, which the system chooses if `port` is 0."""
    try:
        server = _QuietServer((host, port), _QuietHandler)
    except OSError as error:
        raise MonitorUnusable(
            f"cannot listen on {host}:{port} ({error.strerror}); choose another PYOCO_MONITOR_PORT"
        ) from error
    server.set_app(_application(registry, waiting_for, _known_hosts(host, str(server.server_address[0]))))
    thread = threading.Thread(target=server.serve_forever, name="fleet-monitor", daemon=True)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _known_hosts(host: str, address: str) -> frozenset[str]:
    """Host names accepted on a loopback address, against DNS rebinding by a web page.

    Empty: any name, for an address that others reach as well, such as Prometheus in compose.
    """
    return frozenset({*_LOOPBACK_NAMES, host, address}) if ip_address(address).is_loopback else frozenset()


def _name_of(host: str) -> str | None:
    """The host name without the port."""
    try:
        return urlsplit(f"//{host}").hostname
    except ValueError:
        return None


def _application(
    registry: CollectorRegistry, waiting_for: WaitingFor, known_hosts: frozenset[str]
) -> Callable[[Any, _Start], Iterable[bytes]]:
    def answer(environ: dict[str, Any], start: _Start) -> Iterable[bytes]:
        try:
            asked_for = environ.get("HTTP_HOST", "")
            if known_hosts and asked_for and _name_of(asked_for) not in known_hosts:
                sentence = "this host is not known here; use localhost or the address of PYOCO_MONITOR_HOST"
                status, content_type, body = "421 Misdirected Request", _JSON, _json({"detail": sentence})
            else:
                status, content_type, body = look(environ["REQUEST_METHOD"], environ["PATH_INFO"])
        except Exception:
            logger.exception("this process could not be looked at")
            status, content_type, body = "500 Internal Server Error", _JSON, _json({"detail": "internal error"})
        start(status, [("Content-Type", content_type), ("Content-Length", str(len(body)))])
        return [body]

    def look(method: str, path: str) -> tuple[str, str, bytes]:
        match method, path:
            case "GET", "/metrics":
                return "200 OK", CONTENT_TYPE_PLAIN_0_0_4, generate_latest(registry)
            case "GET", "/health":
                missing = waiting_for()
                return "200 OK", _JSON, _json({"status": "degraded" if missing else "ok", "waiting_for": missing})
            case "GET", "/ready":
                missing = waiting_for()
                status = "503 Service Unavailable" if missing else "200 OK"
                return status, _JSON, _json({"status": "waiting" if missing else "ready", "waiting_for": missing})
            case _:
                return "404 Not Found", _JSON, _json({"detail": "there is nothing at this address"})

    return answer


def _json(content: dict[str, Any]) -> bytes:
    return json.dumps(content).encode()


class _QuietServer(WSGIServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log a client that sent nothing or went away; the library would print a traceback, which is no log line."""
        logger.debug("%s could not be answered", client_address, exc_info=True)


class _QuietHandler(WSGIRequestHandler):
    # A client that connects and sends nothing must not block the others for ever.
    timeout = 5

    def log_message(self, format: str, *args: Any) -> None:
        logger.debug(format, *args)

    def get_stderr(self) -> io.StringIO:
        """Discards what the library prints when clients do not read their response."""
        return io.StringIO()
