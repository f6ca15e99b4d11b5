"""Requests that no client would send: other spellings, methods, headers, keys. None of them gets in."""

import re
import socket
from http import HTTPStatus

import pytest

from fleet_contracts.scopes import ALL_SCOPES, Scope
from fleet_testkit.api_keys import KEY_HEADER, KeyRing
from fleet_testkit.containers.compose import ComposedFleet
from fleet_testkit.fleet import Fleet
from fleet_testkit.waiting import wait_until

SPOOFED = (
    "X-Pyoco-Tenant-Id: operators\r\nX-Pyoco-Scopes: admin\r\nX-Pyoco-Api-Key-Id: x\r\n"
    "X-Pyoco-From-Gateway: guessed\r\nX-Forwarded-For: 127.0.0.1\r\nX-Original-URI: /health\r\n"
)
# Ways to say /workers (or to reach it); the key below may not.
SPELLINGS = [
    "/workers",
    "/workers/",
    "//workers",
    "///workers",
    "/./workers",
    "/runs/../workers",
    "/runs/%2e%2e/workers",
    "/runs/..%2fworkers",
    "/runs%2f..%2fworkers",
    "/static/../workers",
    "/static/%2e%2e/workers",
    "/static/..%2fworkers",
    "/health/../workers",
    "/health/..;/workers",
    "/health;/../workers",
    "/health%00/../workers",
    "/%77orkers",
    "/%57ORKERS",
    "/WORKERS",
    "/Workers",
    "/workers%20",
    "/workers%00",
    "/workers%0a",
    "/workers?",
    "/workers?x=/health",
    "/workers#/health",
    "/workers;a=b",
    "/workers/.",
    "/workers/..",
    "/workers/../workers",
    "/workers\\..\\health",
    "http://127.0.0.1/workers",
    "http://evil.example/workers",
    "/health?/workers",
    "/_fleet/verify",
    "/auth/../verify",
    "/auth/..%2fverify",
    "/auth/verify",
    "/auth//keys",
    "/auth/keys/../../workers",
    "/_fleet/error",
    "/_fleet/../workers",
]
METHODS = ["GET", "HEAD", "OPTIONS", "TRACE", "CONNECT", "PUT", "PATCH", "DELETE", "PROPFIND", "get", "GETT"]


@pytest.fixture(scope="module")
def limited(guarded: Fleet) -> str:
    """A key for everything but workers."""
    return KeyRing(guarded).issue("acme", ALL_SCOPES - {Scope.ADMIN, Scope.WORKERS_READ, Scope.WORKERS_WRITE})[
        KEY_HEADER
    ]


def raw(stack: Fleet, request: bytes) -> bytes:
    """All bytes until the other side closes."""
    with socket.create_connection(("127.0.0.1", stack.port), timeout=20) as connection:
        connection.sendall(request)
        received = b""
        while chunk := connection.recv(65536):
            received += chunk
    return received


def send(stack: Fleet, line: str, *headers: bytes | str) -> tuple[int, bytes]:
    """Status (0: no answer at all) and the rest of the answer.

    A 503 means that the key could not be verified just now; it lets nobody in, and is asked again.
    """
    lines = [line.encode("latin-1"), b"Host: localhost", b"Connection: close", SPOOFED.strip().encode()]
    lines += [header.encode("latin-1") if isinstance(header, str) else header for header in headers]
    request = b"\r\n".join([*lines, b"", b""])

    def verdict() -> tuple[int, bytes] | None:
        head, _, body = raw(stack, request).partition(b"\r\n\r\n")
        status = int(head.split()[1]) if head.startswith(b"HTTP/") else 0
        return None if status == HTTPStatus.SERVICE_UNAVAILABLE else (status, body)

    answer = wait_until(verdict, within=60, what="a verdict")
    assert answer
    return answer


@pytest.mark.parametrize("target", SPELLINGS)
def test_no_spelling_of_an_address_gets_in(guarded: Fleet, limited: str, target: str) -> None:
    # The dashboard, the health check, and a hint at the address without its last slash are nobody's secret.
    harmless = {"/workers/..": 200, "/health?/workers": 200, "/workers/": 307}
    for headers in ((), (f"{KEY_HEADER}: wrong",), (f"{KEY_HEADER}: {limited}",)):
        status, body = send(guarded, f"GET {target} HTTP/1.1", *headers)
        assert 400 <= status < 500 or status == harmless.get(target), (status, body[:200])
        assert b"worker_id" not in body
        assert b"worker_" not in body or b"missing_scope" in body


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("target", ["/workers", "/runs", "/metrics", "/auth/keys", "/wheels", "*"])
def test_no_method_gets_in(guarded: Fleet, method: str, target: str) -> None:
    for headers in ((), (f"{KEY_HEADER}: wrong",)):
        status, body = send(guarded, f"{method} {target} HTTP/1.1", *headers)
        assert 400 <= status < 500, (status, body[:200])


@pytest.mark.parametrize("version", ["HTTP/1.0", "HTTP/0.9", "HTTP/2.0", ""])
def test_no_version_of_http_gets_in(guarded: Fleet, version: str) -> None:
    status, body = send(guarded, f"GET /workers {version}".rstrip())
    assert status == 0 or 400 <= status < 600, (status, body[:200])
    assert b"worker_id" not in body
    assert status not in (500, 502, 504)


@pytest.mark.parametrize(
    "header",
    [
        b"X-API-Key:",
        b"X-API-Key: " + b"x" * 8000,
        b"X-API-Key: %(key)b, %(key)b",
        b"X-API-Key: %(key)b\r\nX-API-Key: %(key)b",
        b"X-API-Key: wrong\r\nX-API-Key: %(key)b",
        b"X-API-Key: %(key)b\r\nX-API-Key: wrong",
        b"X-API-Key: %(key)b\x01",
        b"X-API-Key: \x7f%(key)b",
        b"X-API-Key: %(key)b\xc3\xa9",
        b"X-API-Key: %(key)bx",
        b"X-API-Key: %(key)b.",
        b"X-API-Key: x%(key)b",
        b"X-API-Key: Bearer %(key)b",
        b'X-API-Key: "%(key)b"',
        b"X-API-Key: %(upper)b",
        b"X-API-Key: %(half)b",
        b"X_API_Key: %(key)b",
        b"X-API-Key : %(key)b",
        b"X-API-Keys: %(key)b",
        b"Authorization: Bearer %(key)b",
        b"Cookie: X-API-Key=%(key)b",
        b"X-Other: a\r\n X-API-Key: %(key)b",
    ],
)
def test_no_spelling_of_a_good_key_gets_in(guarded: Fleet, limited: str, header: bytes) -> None:
    key = limited.encode()
    assert send(guarded, "GET /runs HTTP/1.1", b"X-API-Key: " + key)[0] == 200
    filled = (
        header.replace(b"%(key)b", key).replace(b"%(upper)b", key.upper()).replace(b"%(half)b", key[: len(key) // 2])
    )
    status, body = send(guarded, "GET /runs HTTP/1.1", filled)
    if header.startswith(b"X-API-Key: %(key)b\r\n") and _takes_the_first_of_two(guarded):
        assert status == 200, (status, body[:200])
    else:
        assert status in (400, 401, 403), (status, body[:200])


def _takes_the_first_of_two(fleet: Fleet) -> bool:
    """nginx does since 1.23 no more. The image is 1.28; where no registry is, something older may stand in for it."""
    if not isinstance(fleet, ComposedFleet):
        return False
    said, _, _ = fleet.compose.exec_in_container(["sh", "-c", "nginx -v 2>&1"], "gateway")
    version = re.search(r"nginx/(\d+)\.(\d+)", said)
    assert version is not None, said
    return (int(version[1]), int(version[2])) < (1, 23)


def test_a_header_larger_than_any_key_is_refused(guarded: Fleet) -> None:
    status, _ = send(guarded, "GET /runs HTTP/1.1", b"X-API-Key: " + b"x" * 40_000)
    assert status == 431


def test_what_follows_a_good_request_on_its_connection_needs_a_key_of_its_own(guarded: Fleet, limited: str) -> None:
    first = f"GET /runs HTTP/1.1\r\nHost: localhost\r\nX-API-Key: {limited}\r\n\r\n"
    second = "GET /runs HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    answers = raw(guarded, (first + second).encode())
    assert _statuses(answers) == [200, 401]


@pytest.mark.parametrize(
    "framing",
    [
        "Content-Length: 6\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: chunked\r\nContent-Length: 6",
        "Content-Length: 6\r\nContent-Length: 60",
        "Transfer-Encoding: xchunked",
        "Transfer-Encoding: chunked, identity",
        "Content-Length: +6",
    ],
)
def test_a_request_is_not_smuggled_past_auth_inside_another(guarded: Fleet, limited: str, framing: str) -> None:
    """nginx and the services must agree where a request ends, or the rest of it would come without a verdict."""
    inner = (
        "GET /workers HTTP/1.1\r\nHost: localhost\r\nX-Pyoco-Tenant-Id: operators\r\nX-Pyoco-Scopes: admin\r\n\r\n"
    )
    head = f"POST /runs HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nX-API-Key: {limited}\r\n{framing}\r\n\r\n"
    answers = raw(guarded, f"{head}0\r\n\r\n{inner}".encode())
    assert b"worker_id" not in answers
    statuses = _statuses(answers)
    assert statuses
    assert all(400 <= status < 500 or status == 501 for status in statuses), statuses


def _statuses(answers: bytes) -> list[int]:
    return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d{3}) ", answers)]
