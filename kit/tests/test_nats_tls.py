"""TLS to NATS: trusted certificates, server names, and client certificates."""

import asyncio
import datetime
import ipaddress
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from fleet_kit.nats.link import NatsLink
from fleet_kit.settings import FleetSettings, SettingsError
from fleet_testkit.nats_server import NatsServer
from fleet_testkit.waiting import eventually


@dataclass(frozen=True)
class Issued:
    certificate: Path
    key: Path


class Authority:
    """Signs certificates for a test."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        authority = x509.BasicConstraints(ca=True, path_length=None)
        self._certificate = self._sign(self._name, self._key.public_key(), [(authority, True)])
        self.file = folder / f"{name}.pem"
        self.file.write_bytes(self._certificate.public_bytes(serialization.Encoding.PEM))

    def issue(self, name: str, *, address: str | None = None) -> Issued:
        key = ec.generate_private_key(ec.SECP256R1())
        names: list[x509.GeneralName] = [x509.DNSName(name)]
        if address is not None:
            names.append(x509.IPAddress(ipaddress.ip_address(address)))
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        certificate = self._sign(subject, key.public_key(), [(x509.SubjectAlternativeName(names), False)])
        issued = Issued(self._folder / f"{name}.crt", self._folder / f"{name}.key")
        issued.certificate.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        issued.key.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        return issued

    def _sign(
        self,
        subject: x509.Name,
        public_key: ec.EllipticCurvePublicKey,
        extensions: list[tuple[x509.ExtensionType, bool]],
    ) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(public_key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(minutes=5))
            .not_valid_after(now + datetime.timedelta(hours=1))
        )
        for extension, critical in extensions:
            builder = builder.add_extension(extension, critical=critical)
        return builder.sign(self._key, hashes.SHA256())


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path, "authority")


def tls(issued: Issued, more: str = "") -> str:
    return f'tls {{ cert_file: "{issued.certificate}", key_file: "{issued.key}"{more} }}\n'


@pytest.fixture
def server(tmp_path: Path, authority: Authority) -> Iterator[NatsServer]:
    """Known by the name nats.fleet and by its address."""
    issued = authority.issue("nats.fleet", address="127.0.0.1")
    server = NatsServer(tmp_path / "nats", more_config=tls(issued))
    server.start()
    yield server
    server.kill()


async def until_ready(settings: FleetSettings) -> None:
    async with NatsLink(settings, name="test") as link:
        async with asyncio.timeout(30):
            await link.wait_ready()
        assert link.client._server_info["tls_required"] is True
        assert link.client.is_connected


async def reason_of_failing(settings: FleetSettings) -> str:
    """What the link says when it has tried in vain."""
    async with NatsLink(settings, name="test") as link:
        await eventually(
            lambda: link.down_because not in (None, "not connected yet"), within=30, what="a reason for the failure"
        )
        return link.down_because or ""


async def test_a_server_whose_signer_is_named_is_trusted(server: NatsServer, authority: Authority) -> None:
    for scheme in ("tls", "nats"):
        url = server.url.replace("nats://", f"{scheme}://")
        await until_ready(FleetSettings(nats_url=url, nats_tls_ca_file=authority.file))


async def test_a_server_of_another_signer_is_not_trusted_and_the_reason_is_logged(
    server: NatsServer, tmp_path: Path
) -> None:
    stranger = Authority(tmp_path, "stranger")
    for settings in (
        FleetSettings(nats_url=server.url, nats_tls_ca_file=stranger.file),
        FleetSettings(nats_url=server.url.replace("nats://", "tls://")),
    ):
        reason = await reason_of_failing(settings)
        assert reason.startswith("the certificate of NATS is not trusted (")
        assert reason.endswith("check PYOCO_NATS_TLS_CA_FILE")


async def test_the_name_in_the_certificate_counts(server: NatsServer, authority: Authority, tmp_path: Path) -> None:
    ca = authority.file
    await until_ready(FleetSettings(nats_url=server.url, nats_tls_ca_file=ca, nats_tls_hostname="nats.fleet"))
    reason = await reason_of_failing(
        FleetSettings(nats_url=server.url, nats_tls_ca_file=ca, nats_tls_hostname="other.fleet")
    )
    assert "Hostname mismatch" in reason
    assert "PYOCO_NATS_TLS_HOSTNAME" in reason


async def test_a_server_that_wants_to_see_a_certificate_is_shown_one(tmp_path: Path, authority: Authority) -> None:
    wants = f', ca_file: "{authority.file}", verify: true'
    server = NatsServer(tmp_path / "nats", more_config=tls(authority.issue("nats.fleet", address="127.0.0.1"), wants))
    server.start()
    try:
        ours = authority.issue("worker")
        await until_ready(
            FleetSettings(
                nats_url=server.url,
                nats_tls_ca_file=authority.file,
                nats_tls_cert_file=ours.certificate,
                nats_tls_key_file=ours.key,
            )
        )
        assert await reason_of_failing(FleetSettings(nats_url=server.url, nats_tls_ca_file=authority.file))
    finally:
        server.kill()


def test_files_that_cannot_be_used_are_refused_with_a_sentence(tmp_path: Path, authority: Authority) -> None:
    issued = authority.issue("ours")
    with pytest.raises(SettingsError, match=r"PYOCO_NATS_TLS_CA_FILE cannot be used \(No such file or directory\)"):
        FleetSettings.load(nats_tls_ca_file=tmp_path / "nowhere.pem")
    (tmp_path / "empty.pem").write_text("")
    with pytest.raises(SettingsError, match="PYOCO_NATS_TLS_CA_FILE cannot be used"):
        FleetSettings.load(nats_tls_ca_file=tmp_path / "empty.pem")
    with pytest.raises(SettingsError, match="belong together; set both or none"):
        FleetSettings.load(nats_tls_cert_file=issued.certificate)
    with pytest.raises(SettingsError, match="PYOCO_NATS_TLS_CERT_FILE and PYOCO_NATS_TLS_KEY_FILE cannot be used"):
        FleetSettings.load(nats_tls_cert_file=issued.certificate, nats_tls_key_file=authority.issue("other").key)
