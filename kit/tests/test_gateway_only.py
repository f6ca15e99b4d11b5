"""A service answers the gateway only: other clients of its port or socket cannot forge an identity."""

import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI, Request, Response
from pydantic import SecretStr

from fleet_contracts.names import HEADER_FROM_GATEWAY
from fleet_kit.files.secrets import SecretFileError, read_secret, write_secret
from fleet_kit.http.app import ServiceApp, create_app, new_router
from fleet_kit.http.gateway_only import GatewayOnly
from fleet_kit.http.identity import RunsReader
from fleet_kit.settings import HttpSettings, SettingsError
from fleet_kit.telemetry.metrics import new_registry
from fleet_testkit.apps import ANONYMOUS

SECRET = "a-secret-of-the-gateway"
FROM_GATEWAY = {HEADER_FROM_GATEWAY: SECRET}


def build() -> ServiceApp:
    router = new_router()

    @router.get("/who")
    async def who(caller: RunsReader) -> str:
        return caller.tenant_id

    @router.post("/busy")
    async def busy() -> str:
        return "slow"

    async def express(_: Request) -> Response:
        return Response("express")

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield

    async def readiness() -> dict[str, str]:
        return {}

    return create_app(
        component="probe",
        routers=[router],
        lifespan=lifespan,
        readiness=readiness,
        registry=new_registry("probe"),
        express={("POST", "/busy"): express},
    )


@asynccontextmanager
async def client(app: ServiceApp) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(GatewayOnly(app, SecretStr(SECRET)))
    async with httpx.AsyncClient(transport=transport, base_url="http://service") as client:
        yield client


@pytest.mark.parametrize(
    "forged",
    [
        [],
        [(HEADER_FROM_GATEWAY, "")],
        [(HEADER_FROM_GATEWAY, "another-secret-of-nobody")],
        [(HEADER_FROM_GATEWAY, SECRET[:-1])],
        [(HEADER_FROM_GATEWAY, "\xff" * 23)],
        [(HEADER_FROM_GATEWAY, SECRET), (HEADER_FROM_GATEWAY, SECRET)],
    ],
)
@pytest.mark.parametrize(("method", "path"), [("GET", "/who"), ("POST", "/busy"), ("GET", "/nowhere")])
async def test_a_forged_identity_is_refused_wherever_it_is_sent(
    method: str, path: str, forged: list[tuple[str, str]]
) -> None:
    headers = [*ANONYMOUS.items(), ("X-Request-Id", "r-1"), *forged]
    raw = [(name.encode(), value.encode("latin-1")) for name, value in headers]
    async with client(build()) as asker:
        answer = await asker.request(method, path, headers=raw)
    assert answer.status_code == 401
    assert answer.headers["x-request-id"] == "r-1"
    error = answer.json()["error"]
    assert error["message"] == "The request did not come through the gateway; send it there."
    assert (error["code"], error["meta"]["err_id"]) == ("UNAUTHENTICATED", "ERR-PYOCO-0014")
    assert SECRET not in answer.text


async def test_what_the_gateway_sends_is_answered_on_every_lane() -> None:
    async with client(build()) as asker:
        assert (await asker.get("/who", headers={**ANONYMOUS, **FROM_GATEWAY})).json() == "anonymous"
        assert (await asker.post("/busy", headers=FROM_GATEWAY)).text == "express"
        assert (await asker.get("/nowhere", headers=FROM_GATEWAY)).status_code == 404


async def test_health_and_metrics_need_no_secret() -> None:
    async with client(build()) as asker:
        for path in ("/health", "/ready", "/metrics"):
            assert (await asker.get(path)).status_code == 200


@pytest.mark.parametrize("host", ["0.0.0.0", "10.1.2.3", "::", "fleet.example"])
def test_a_service_that_others_can_reach_does_not_start_without_the_secret(host: str, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=f"would listen on {host} and believe every client; set PYOCO_GATE"):
        HttpSettings.load(host=host)
    HttpSettings.load(host=host, gateway_secret=SECRET)
    HttpSettings.load(host=host, uds=str(tmp_path / "s.sock"))


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
def test_on_the_loopback_address_no_secret_is_needed(host: str) -> None:
    assert HttpSettings.load(host=host).gateway_secret is None


def test_the_secret_may_stand_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "deep" / "secret"
    write_secret(file, SECRET)
    assert (file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    settings = HttpSettings.load(gateway_secret_file=file)
    assert settings.gateway_secret is not None
    assert settings.gateway_secret.get_secret_value() == SECRET
    with pytest.raises(SettingsError, match="both set; unset one of them"):
        HttpSettings.load(gateway_secret_file=file, gateway_secret=SECRET)


def test_a_file_that_cannot_hold_a_secret_is_refused_with_a_sentence(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    with pytest.raises(SecretFileError, match=r"^PYOCO_X: .*secret cannot be read \(No such file or directory\)$"):
        read_secret(file, setting="PYOCO_X")
    file.write_text(" \n")
    file.chmod(0o600)
    with pytest.raises(SecretFileError, match="is empty"):
        read_secret(file, setting="PYOCO_X")
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(SecretFileError, match="is not a text file"):
        read_secret(file, setting="PYOCO_X")
    file.write_text(SECRET)
    file.chmod(0o604)
    with pytest.raises(SettingsError, match="PYOCO_GATEWAY_SECRET_FILE: everybody on this machine may use"):
        HttpSettings.load(gateway_secret_file=file)


@pytest.mark.parametrize("bad", ["short", "with spaces in it, long enough", 'quote"and$dollar;brace{'])
def test_a_secret_that_cannot_be_used_is_refused_without_being_shown(bad: str) -> None:
    program = "from fleet_kit.settings import HttpSettings; HttpSettings.load()"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYOCO_GATEWAY_SECRET": bad, "PYOCO_LOAD_DOTENV": "0"},
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert "the gateway secret must have 16 to 256 letters" in done.stderr
    assert bad not in done.stderr
