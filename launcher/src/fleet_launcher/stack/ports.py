"""Ports and addresses: checks whether a port is free, chooses a free one, makes URLs."""

import errno
import random
import socket
from pathlib import Path
from urllib.parse import urlsplit

from ..errors import LaunchError

# Below the ephemeral ports: a client that connects to a stopped server on one of those can end up connected to
# itself and so keep the server from coming back.
_OWN_PORTS = range(20000, 32000)


def check_gateway_port(host: str, port: int) -> None:
    """Refuse, before anything is started, an address that nginx could not listen on."""
    try:
        _bind(host, port)
    except socket.gaierror as error:
        raise LaunchError(f"the host {host} has no address here; choose another with --host") from error
    except OSError as error:
        raise LaunchError(_sentence(error, host, port)) from error


def check_metrics_ports(first: int, *, count: int) -> None:
    """Refuse metrics ports that are taken: the services share the first one, each worker has its own."""
    for port in range(first, first + count):
        if not is_free(port):
            raise LaunchError(f"port {port} for metrics is taken; free it or choose another with --metrics-port")


def nats_port(remembered: Path, *, host: str, wanted: int | None) -> int:
    """The wanted port of the host, else the one used last time, else any free one; kept for the next start."""
    try:
        _bind(host, 0)
    except OSError as error:
        raise LaunchError(
            f"the host {host} for NATS is not an address of this machine; choose another with PYOCO_NATS_HOST"
        ) from error
    if wanted is not None:
        if not is_free(wanted, host):
            raise LaunchError(f"port {wanted} for NATS is taken; free it or choose another with PYOCO_NATS_PORT")
        port = wanted
    else:
        port = _last_port(remembered, host) or _any_port(host)
    remembered.write_text(f"{port}\n")
    return port


def is_free(port: int, host: str = "127.0.0.1") -> bool:
    try:
        _bind(host, port)
    except OSError:
        return False
    return True


def browser_url(host: str, port: int) -> str:
    """The URL of the gateway for a browser."""
    return f"http://{reachable(host)}:{port}"


def reachable(host: str) -> str:
    """The host as written in a URL; a wildcard address becomes the loopback address."""
    name = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(host, host)  # noqa: S104 - not bound here
    return f"[{name}]" if ":" in name else name


def without_password(url: str) -> str:
    """The URL without user and password."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def _bind(host: str, port: int) -> None:
    [(family, kind, _, _, address), *_] = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    with socket.socket(family, kind) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(address)


def _sentence(error: OSError, host: str, port: int) -> str:
    match error.errno:
        case errno.EADDRINUSE:
            return f"port {port} on {host} is taken; stop what uses it or choose another with --port"
        case errno.EACCES:
            return f"port {port} needs more rights than this user has; choose one above 1023 with --port"
        case errno.EADDRNOTAVAIL:
            return f"the host {host} is not an address of this machine; choose another with --host"
        case _:
            return f"cannot listen on {host} port {port} ({error.strerror}); choose others with --host and --port"


def _last_port(remembered: Path, host: str) -> int | None:
    try:
        port = int(remembered.read_text())
    except (OSError, ValueError):
        return None
    return port if 0 < port <= 65535 and is_free(port, host) else None


def _any_port(host: str) -> int:
    for port in random.sample(_OWN_PORTS, 200):
        if is_free(port, host):
            return port
    raise LaunchError("found no free port for NATS; choose one with PYOCO_NATS_PORT")
