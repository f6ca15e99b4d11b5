"""Ports: which are free, which is kept, how an address is shown."""

import socket
from pathlib import Path

import pytest

from fleet_launcher.errors import LaunchError
from fleet_launcher.stack.ports import browser_url, check_gateway_port, check_metrics_ports, nats_port


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:8000"),
        ("0.0.0.0", "http://127.0.0.1:8000"),
        ("::", "http://[::1]:8000"),
        ("::1", "http://[::1]:8000"),
        ("example.org", "http://example.org:8000"),
    ],
)
def test_the_address_shown_is_one_that_a_browser_can_open(host: str, url: str) -> None:
    assert browser_url(host, 8000) == url


def test_a_host_that_is_not_of_this_machine_is_refused() -> None:
    with pytest.raises(LaunchError, match="not an address of this machine; choose another with --host"):
        check_gateway_port("192.0.2.1", 8000)


def test_a_port_for_metrics_that_is_taken_is_reported_whichever_of_them_it_is() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for first in (port, port - 2):
            with pytest.raises(LaunchError, match=r"for metrics is taken; .* choose another with --metrics-port"):
                check_metrics_ports(first, count=3)


def test_nats_keeps_its_port_while_it_is_free(tmp_path: Path) -> None:
    remembered = tmp_path / "nats.port"
    first = nats_port(remembered, host="127.0.0.1", wanted=None)
    assert nats_port(remembered, host="127.0.0.1", wanted=None) == first
    with socket.create_server(("127.0.0.1", first)):
        second = nats_port(remembered, host="127.0.0.1", wanted=None)
        assert second != first
        with pytest.raises(LaunchError, match=f"port {first} for NATS is taken"):
            nats_port(remembered, host="127.0.0.1", wanted=first)
    assert nats_port(remembered, host="127.0.0.1", wanted=None) == second
    remembered.write_text("not a port")
    assert nats_port(remembered, host="127.0.0.1", wanted=None) > 0


def test_the_port_of_nats_is_looked_for_on_its_own_host(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.2", 0))
        other.listen()
        taken = other.getsockname()[1]
        assert nats_port(tmp_path / "port", host="127.0.0.1", wanted=taken) == taken
        with pytest.raises(LaunchError, match="is taken"):
            nats_port(tmp_path / "port", host="127.0.0.2", wanted=taken)
    with pytest.raises(LaunchError, match="for NATS is not an address of this machine"):
        nats_port(tmp_path / "port", host="203.0.113.7", wanted=None)
