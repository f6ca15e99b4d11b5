"""The page of another origin can make a browser send nothing that reads and nothing that changes."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from socket import AF_INET6

import httpx
import psutil
import pytest

from fleet_kit.errors import envelope

from .conftest import Gateway

HOST_REFUSAL = "the gateway does not know this host; name it in PYOCO_ALLOWED_HOSTS, or use an address that it knows"
SITE_REFUSAL = (
    "a page of another origin may change nothing here; "
    "a proxy in front of the gateway must pass on the Host that the browser sent"
)


@pytest.fixture(scope="module")
def named_gateway(short_folder: Callable[[], Path]) -> Iterator[Gateway]:
    names = ("fleet.example.com", "*.lab.example", "192.0.2.7", "[2001:DB8::7]", "localhost")
    gateway = Gateway(short_folder(), allowed_hosts=names)
    gateway.start()
    yield gateway
    gateway.stop()


def ask(gateway: Gateway, line: str, *headers: str) -> tuple[int, dict[str, str], bytes]:
    lines = [line, *headers, "X-API-Key: good", "X-Request-Id: b-1", "Connection: close", "", ""]
    return gateway.raw("\r\n".join(lines).encode("latin-1"))


@pytest.mark.parametrize(
    "host",
    [
        *("localhost", "LOCALHOST:8000", "localhost.", "127.0.0.1", "127.0.0.1:1", "[::1]", "[::1]:8000"),
        *("fleet.example.com", "Fleet.Example.Com.:443", "a.lab.example", "192.0.2.7:80", "[2001:db8::7]"),
    ],
)
def test_a_host_that_it_knows_is_answered_however_it_is_spelled(named_gateway: Gateway, host: str) -> None:
    assert ask(named_gateway, "GET /runs HTTP/1.1", f"Host: {host}")[0] == 200


@pytest.mark.parametrize(
    "host",
    [
        *("evil.example", "localhost.evil.example", "evil.localhost", "127.0.0.1.evil.example", "x127.0.0.1"),
        *("0.0.0.0:8000", "127.0.0.2", "[::]", "lab.example", "fleet.example.com.evil.example", "_"),
    ],
)
def test_a_host_that_it_does_not_know_is_421_whatever_is_asked(named_gateway: Gateway, host: str) -> None:
    for path in ("/", "/static/app.js", "/docs", "/openapi.json", "/health", "/runs", "/metrics", "/nowhere"):
        status, headers, body = ask(named_gateway, f"GET {path} HTTP/1.1", f"Host: {host}")
        assert (status, headers["content-type"]) == (421, "application/json")
        assert json.loads(body) == envelope(status=421, message=HOST_REFUSAL, request_id="b-1")


@pytest.mark.parametrize(
    ("line", "headers", "status"),
    [
        ("GET http://evil.example/runs HTTP/1.1", ["Host: localhost"], (421, 400)),
        ("GET http://evil.example/runs HTTP/1.1", ["Host: evil.example"], (421,)),
        ("GET http://localhost/runs HTTP/1.1", ["Host: localhost"], (200,)),
        ("GET /runs HTTP/1.0", [], (421,)),
        ("GET /runs HTTP/1.0", ["Host: localhost"], (200,)),
        ("GET /runs HTTP/1.1", ["Host: localhost", "Host: evil.example"], (400,)),
        ("GET /runs HTTP/1.1", ["Host: evil.example", "X-Forwarded-Host: localhost"], (421,)),
        ("POST /runs HTTP/1.1", ["Host: evil.example", "Origin: http://evil.example"], (421,)),
    ],
)
def test_the_host_is_the_one_that_the_request_is_for(
    named_gateway: Gateway, line: str, headers: list[str], status: tuple[int, ...]
) -> None:
    assert ask(named_gateway, line, *headers)[0] in status


WRITES = [
    "POST /runs",
    "POST /wheels",
    "POST /runs/r1/cancel",
    "PATCH /workers/w1",
    "PUT /runs/r1",
    "DELETE /wheels/w",
]


@pytest.mark.parametrize(
    "said",
    [
        ["Sec-Fetch-Site: cross-site"],
        ["Sec-Fetch-Site: same-site"],
        ["Sec-Fetch-Site: whatever comes next"],
        ["Origin: http://evil.example"],
        ["Origin: null"],
        ["Origin: http://localhost"],
        ["Origin: http://localhost:8001"],
        ["Origin: http://localhost:8000.evil.example"],
        ["Origin: http://evil.example/localhost:8000"],
        ["Origin: ftp://localhost:8000"],
        ["Origin: http://localhost:8000", "Sec-Fetch-Site: same-site"],
        ["Origin: http://evil.example", "Sec-Fetch-Site: same-origin"],
        ["Origin: http://localhost:8000", "Origin: http://localhost:8000"],
    ],
    ids=" ".join,
)
def test_a_page_of_another_origin_changes_nothing(named_gateway: Gateway, said: list[str]) -> None:
    seen = [len(service.seen) for service in named_gateway.services.values()]
    for write in WRITES:
        status, _, body = ask(named_gateway, f"{write} HTTP/1.1", "Host: localhost:8000", "Content-Length: 0", *said)
        assert status == 403
        assert json.loads(body) == envelope(status=403, message=SITE_REFUSAL, request_id="b-1")
    assert [len(service.seen) for service in named_gateway.services.values()] == seen


@pytest.mark.parametrize(
    "said",
    [
        [],
        ["Sec-Fetch-Site: same-origin", "Origin: http://localhost:8000"],
        ["Sec-Fetch-Site: none"],
        ["Origin: http://localhost:8000"],
        ["Origin: https://LOCALHOST:8000"],
    ],
    ids=" ".join,
)
def test_its_own_pages_and_clients_that_are_no_browsers_notice_nothing(
    named_gateway: Gateway, said: list[str]
) -> None:
    assert ask(named_gateway, "POST /runs HTTP/1.1", "Host: localhost:8000", "Content-Length: 0", *said)[0] == 200


def test_what_changes_nothing_may_be_asked_from_anywhere(named_gateway: Gateway) -> None:
    """The browser keeps the answer from the page, for no answer of ours says otherwise."""
    for method in ("GET", "OPTIONS"):
        status, headers, _ = ask(
            named_gateway, f"{method} /runs HTTP/1.1", "Host: localhost", "Origin: http://evil.example"
        )
        assert status == 200
        assert headers["cross-origin-resource-policy"] == "same-origin"
        assert not [name for name in headers if name.startswith("access-control-")]


@pytest.mark.parametrize("method", ["BREW", "PROPFIND", "TRACE", "M-SEARCH", "FOO_BAR"])
def test_a_method_that_nobody_has_is_answered_with_405(named_gateway: Gateway, method: str) -> None:
    for path in ("/runs", "/health", "/", "/nowhere"):
        status, _, body = ask(named_gateway, f"{method} {path} HTTP/1.1", "Host: localhost")
        assert status == 405
        assert json.loads(body) == envelope(status=405, message="this method is not allowed here", request_id="b-1")


@pytest.mark.parametrize(
    ("theirs", "passed_on"),
    [
        ("http://evil.example/workers?a=http://b/", "/workers?a=http://b/"),
        ("https://localhost:8000/", "/"),
        ("/workers", "/workers"),
    ],
)
def test_a_redirect_names_no_host(start_gateway: Callable[..., Gateway], theirs: str, passed_on: str) -> None:
    gateway = start_gateway()
    gateway.services["workers"].answer = lambda exchange: exchange.reply(307, headers={"Location": theirs})
    assert ask(gateway, "GET /workers/ HTTP/1.1", "Host: localhost")[1]["location"] == passed_on


def test_the_address_that_it_is_bound_to_is_known(start_gateway: Callable[..., Gateway]) -> None:
    gateway = start_gateway(host="0.0.0.0")
    assert ask(gateway, "GET /runs HTTP/1.1", "Host: 127.0.0.1")[0] == 200
    assert ask(gateway, "GET /runs HTTP/1.1", "Host: 0.0.0.0")[0] == 421
    other = start_gateway(host="127.0.0.2")
    assert other.raw_bytes(b"GET /health HTTP/1.0\r\nHost: 127.0.0.2\r\n\r\n").split()[1] == b"200"
    assert other.raw_bytes(b"GET /health HTTP/1.0\r\nHost: 127.0.0.3\r\n\r\n").split()[1] == b"421"


def test_an_ipv6_address_that_it_is_bound_to_is_known(start_gateway: Callable[..., Gateway]) -> None:
    # Not the loopback address: that is known by name.
    own = (one.address for several in psutil.net_if_addrs().values() for one in several if one.family == AF_INET6)
    address = next((one for one in own if not one.startswith(("fe80:", "::1"))), None)
    if address is None:
        pytest.skip("this machine has no IPv6 address of its own")
    gateway = start_gateway(host=address)
    for host, status in ((f"[{address}]", 200), ("[2001:db8::7]", 421)):
        url = f"http://[{address}]:{gateway.config.port}/health"
        assert httpx.get(url, headers={"Host": host}).status_code == status
