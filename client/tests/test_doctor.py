"""doctor in front of small servers: one with another time, one with a certificate that ends soon, one that hangs."""

import ipaddress
import json
import socket
import ssl
import time
from datetime import UTC, datetime, timedelta
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from fleet_testkit.http_servers import serving
from pyoco_fleet.cli.main import main


class Gateway(BaseHTTPRequestHandler):
    """Answers as a gateway without a key does."""

    ahead_seconds = 0.0
    dated = True

    def do_GET(self) -> None:
        if self.path == "/health":
            self._answer(200, {"status": "ok", "waiting_for": {}})
        else:
            meta = {"request_id": "r1", "err_id": "ERR-PYOCO-0014"}
            message = "an API key is required"
            self._answer(401, {"ok": False, "error": {"code": "UNAUTHENTICATED", "message": message, "meta": meta}})

    def _answer(self, status: int, body: dict[str, Any]) -> None:
        data = json.dumps(body).encode()
        self.send_response_only(status)
        if self.dated:
            self.send_header("Date", formatdate(time.time() + self.ahead_seconds, usegmt=True))
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass


class Elsewhere(Gateway):
    """A web server that is no fleet."""

    def do_GET(self) -> None:
        self._answer(200, {"hello": "world"})


@pytest.fixture(autouse=True)
def own_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("PYOCO_SERVER", "PYOCO_API_KEY", "PYOCO_PROFILE", "LC_ALL", "LC_MESSAGES", "LANG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))


def examine(url: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, dict[str, Any]]]:
    code = main(["doctor", "--server", url, "--json"])
    return code, {finding["check"]: finding for finding in json.loads(capsys.readouterr().out)["findings"]}


@pytest.mark.parametrize(
    ("ahead_seconds", "status", "sentence"),
    [
        (0.0, "ok", "agree within"),
        (20.0, "warning", "behind the gateway's"),
        (-20.0, "warning", "ahead of the gateway's"),
        (3600.0, "problem", "behind the gateway's"),
    ],
)
def test_a_clock_that_differs_is_told(
    ahead_seconds: float, status: str, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    class Skewed(Gateway):
        pass

    Skewed.ahead_seconds = ahead_seconds
    with serving(Skewed) as port:
        code, found = examine(f"http://127.0.0.1:{port}", capsys)
    assert found["clock"]["status"] == status
    assert sentence in found["clock"]["sentence"]
    assert code == (status == "problem")


def test_without_any_time_in_the_answers_the_clock_counts_as_not_seen(capsys: pytest.CaptureFixture[str]) -> None:
    class Timeless(Gateway):
        dated = False

    with serving(Timeless) as port:
        _, found = examine(f"http://127.0.0.1:{port}", capsys)
    assert (found["clock"]["status"], found["clock"]["seen"]) == ("warning", False)


def test_something_else_than_a_fleet_is_a_problem(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(Elsewhere) as port:
        code, found = examine(f"http://127.0.0.1:{port}", capsys)
    assert code == 1
    assert "something else than a fleet" in found["gateway"]["sentence"]


def test_a_server_that_never_answers_holds_it_up_for_seconds_only(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=64) as silent:
        begun = time.monotonic()
        code, found = examine(f"http://127.0.0.1:{silent.getsockname()[1]}", capsys)
    assert code == 1
    assert found["gateway"]["status"] == "problem"
    # One timeout for all the questions, far less than one for each.
    assert time.monotonic() - begun < 15


def _certificate(folder: Path, days: float) -> Path:
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "gateway")])
    here = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    made = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    made = made.not_valid_before(now - timedelta(days=30)).not_valid_after(now + timedelta(days=days))
    signed = made.add_extension(here, critical=False).sign(key, hashes.SHA256())
    encoding, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    private = key.private_bytes(encoding, serialization.PrivateFormat.PKCS8, plain)
    file = folder / "gateway.pem"
    file.write_bytes(private + signed.public_bytes(encoding))
    return file


@pytest.mark.parametrize(
    ("days", "is_known", "status", "sentence"),
    [
        (90, True, "ok", "valid until"),
        (3, True, "warning", "expires at"),
        (-1, True, "problem", "certificate has expired"),
        (90, False, "problem", "self-signed certificate"),
    ],
)
def test_the_certificate_of_an_https_address_is_judged(
    days: float,
    is_known: bool,
    status: str,
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    certificate = _certificate(tmp_path, days)
    if is_known:
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    with serving(Gateway, tls=context) as port:
        code, found = examine(f"https://127.0.0.1:{port}", capsys)
    assert found["certificate"]["status"] == status
    assert sentence in found["certificate"]["sentence"]
    assert found["gateway"]["status"] == ("problem" if status == "problem" else "ok")
    assert code == (status == "problem")
