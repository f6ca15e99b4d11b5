"""The configuration that nginx is given."""

import os
import re
import shutil
import stat
import subprocess
from pathlib import Path

import pytest
from pydantic import ValidationError

from fleet_contracts import names
from fleet_gateway import render as rendering
from fleet_gateway.config import STATIC_DIR, GatewayConfig, resolve_lang
from fleet_gateway.render import (
    HTTP_TEMPLATE,
    VERDICTS_DIR,
    GatewayError,
    fill,
    nginx_binary,
    nginx_command,
    render,
    variables_of,
)

ROOM = Path(__file__).parents[1]

# The main file of the public nginx image, with paths a test may write to.
CONTAINER_MAIN = """
daemon off;
pid {folder}/nginx.pid;
events {{ worker_connections 128; }}
http {{
    types {{ text/html html; }}
    default_type application/octet-stream;
    access_log {folder}/main-access.log;
    client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
    sendfile on;
    server_tokens on;
    gzip on;
    keepalive_timeout 65;
    include {folder}/conf.d/*.conf;
}}
"""


def config(folder: Path, **options: object) -> GatewayConfig:
    upstreams = {f"{name}_upstream": f"unix:/tmp/{name}.sock" for name in ("runs", "workers", "wheels", "auth")}
    return GatewayConfig.model_validate({**upstreams, "temp_dir": folder / "tmp", **options})


def image_defaults() -> dict[str, str]:
    """The variables that the gateway's image sets."""
    text = (ROOM / "Dockerfile").read_text().replace("\\\n", " ")
    line = next(line for line in text.splitlines() if line.startswith("ENV "))
    return dict(pair.split("=", 1) for pair in line.removeprefix("ENV ").split())


def check(command: list[str]) -> str:
    done = subprocess.run([*command, "-t"], capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr
    return done.stderr


def test_nginx_accepts_the_embedded_configuration_without_a_warning(tmp_path):
    assert "[warn]" not in check(nginx_command(render(config(tmp_path), tmp_path)))


def test_a_folder_with_spaces_and_other_scripts_works(tmp_path):
    folder = tmp_path / "my data データ"
    check(nginx_command(render(config(folder), folder)))


@pytest.mark.parametrize("verdicts", ["with-njs.conf", "without-njs.conf"])
def test_nginx_accepts_the_container_configuration_beside_what_the_image_sets(tmp_path, verdicts):
    upstreams = {name: "localhost:18000" for name in image_defaults() if name.endswith("_UPSTREAM")}
    variables = image_defaults() | upstreams
    (tmp_path / "conf.d").mkdir()
    (tmp_path / "conf.d" / "pyoco.conf").write_text(fill(HTTP_TEMPLATE.read_text(), variables))
    shutil.copyfile(VERDICTS_DIR / verdicts, tmp_path / "conf.d" / "verdicts.conf")
    shutil.copyfile(VERDICTS_DIR / "verdicts.js", tmp_path / "verdicts.js")
    main = tmp_path / "nginx.conf"
    main.write_text(CONTAINER_MAIN.format(folder=tmp_path))
    assert "[warn]" not in check(nginx_command(main))


def test_the_image_sets_every_variable_to_what_the_embedded_stack_uses(tmp_path):
    ours = config(tmp_path).variables()
    image = image_defaults()
    assert image.keys() == ours.keys() == variables_of(HTTP_TEMPLATE.read_text())
    same = [name for name in ours if name.endswith(("_LIMIT", "_HEADER", "_VARIABLE", "_LOG"))]
    assert {name: image[name] for name in same} == {name: ours[name] for name in same}


def test_every_variable_of_the_templates_is_one_that_envsubst_replaces_and_nginx_does_not_know():
    text = HTTP_TEMPLATE.read_text()
    assert all(name.startswith("PYOCO_") for name in re.findall(r"\$\{([^}]*)\}", text))
    assert not re.search(r"\$PYOCO_", text)


def test_the_template_names_the_identity_headers_of_the_contract():
    text = HTTP_TEMPLATE.read_text()
    for header in (names.HEADER_TENANT_ID, names.HEADER_API_KEY_ID, names.HEADER_SCOPES, names.HEADER_REQUEST_ID):
        assert f"proxy_set_header {header} $fleet_" in text
    assert text.count(f'proxy_set_header {names.HEADER_FROM_GATEWAY} "${{PYOCO_GATEWAY_SECRET}}";') == 2
    for header in (names.HEADER_TENANT_ID, names.HEADER_API_KEY_ID, names.HEADER_SCOPES):
        assert f"$upstream_http_{header.lower().replace('-', '_')};" in text


def test_a_variable_without_a_value_is_refused_by_name():
    with pytest.raises(GatewayError, match="needs values for: PYOCO_B"):
        fill("${PYOCO_A} ${PYOCO_B} $host", {"PYOCO_A": "1"})


def test_a_value_without_a_variable_is_refused_by_name():
    with pytest.raises(GatewayError, match="does not know: PYOCO_B"):
        fill("${PYOCO_A}", {"PYOCO_A": "1", "PYOCO_B": "2"})


def test_a_misspelt_variable_is_refused():
    with pytest.raises(GatewayError, match="capital letters"):
        fill("${PYOCO_a}", {})


def test_the_user_directive_is_written_for_root_only(tmp_path, monkeypatch):
    monkeypatch.setattr(rendering.os, "geteuid", lambda: 0)
    assert re.search(r"^user root \w+;$", render(config(tmp_path), tmp_path).read_text(), re.MULTILINE)
    monkeypatch.setattr(rendering.os, "geteuid", lambda: 1000)
    assert not re.search(r"^user ", render(config(tmp_path), tmp_path).read_text(), re.MULTILINE)


def test_the_file_with_the_secret_is_private_also_if_an_earlier_one_was_not(tmp_path):
    (tmp_path / "pyoco.conf").write_text("of an earlier version")
    render(config(tmp_path, secret="s3cret-of-the-gateway"), tmp_path)
    assert "s3cret-of-the-gateway" in (tmp_path / "pyoco.conf").read_text()
    assert stat.S_IMODE((tmp_path / "pyoco.conf").stat().st_mode) == 0o600
    assert "s3cret-of-the-gateway" not in (tmp_path / "nginx.conf").read_text()


def test_a_secret_that_would_break_the_configuration_is_refused_without_being_shown(tmp_path):
    with pytest.raises(ValidationError, match="letters, digits") as refusal:
        config(tmp_path, secret='evil"; deny all; #')
    assert "evil" not in refusal.value.errors()[0]["msg"]


def test_the_folder_with_bodies_of_requests_is_private(tmp_path):
    render(config(tmp_path), tmp_path)
    assert stat.S_IMODE((tmp_path / "tmp").stat().st_mode) == 0o700


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"runs_upstream": "somewhere"}, "neither unix:/path/to.sock nor host:port"),
        ({"runs_upstream": "a:1; evil on"}, "neither unix:/path/to.sock nor host:port"),
        ({"runs_upstream": "unix:/" + "x" * 110}, "use a shorter data folder"),
        ({"temp_dir": Path("relative")}, "must be an absolute path"),
        ({"static_dir": Path('/a"b')}, "which nginx cannot take in a path"),
        ({"access_log": "/a$b"}, "which nginx cannot take in a path"),
        ({"api_key_header": "X Key;"}, "api_key_header"),
        ({"dashboard_lang": "fr"}, "dashboard_lang"),
        ({"allowed_hosts": ("http://fleet.example",)}, "name hosts without scheme and port"),
        ({"allowed_hosts": ("fleet.example:8000",)}, "name hosts without scheme and port"),
        ({"allowed_hosts": ("x 1; default",)}, "name hosts without scheme and port"),
        ({"allowed_hosts": ("*",)}, "name hosts without scheme and port"),
        ({"port": 0}, "port"),
    ],
)
def test_a_value_that_would_break_the_configuration_is_refused(tmp_path, options, sentence):
    with pytest.raises(ValidationError, match=re.escape(sentence)):
        config(tmp_path, **options)


def test_ipv6_addresses_are_written_in_brackets(tmp_path):
    assert config(tmp_path, host="::1").variables()["PYOCO_GATEWAY_LISTEN"] == "[::1]:8000"


@pytest.mark.parametrize(
    ("lang", "environ", "expected"),
    [
        ("en", {"LANG": "ja_JP.UTF-8"}, "en"),
        ("ja", {"LANG": "C"}, "ja"),
        ("auto", {"LANG": "ja_JP.UTF-8"}, "ja"),
        ("auto", {"LC_ALL": "C.UTF-8", "LANG": "ja_JP.UTF-8"}, "en"),
        ("auto", {"LC_ALL": "", "LC_MESSAGES": "ja_JP", "LANG": "en_US"}, "ja"),
        ("auto", {}, "en"),
    ],
)
def test_the_dashboard_speaks_the_language_of_the_servers_locale(lang, environ, expected):
    assert resolve_lang(lang, environ) == expected


def test_the_packaged_nginx_is_executable(monkeypatch):
    monkeypatch.delenv("PYOCO_NGINX_BIN", raising=False)
    assert os.access(nginx_binary(), os.X_OK)


def test_an_nginx_of_the_users_choice_is_taken(monkeypatch, tmp_path):
    own = tmp_path / "nginx"
    own.write_text("#!/bin/sh\n")
    own.chmod(0o755)
    monkeypatch.setenv("PYOCO_NGINX_BIN", str(own))
    assert nginx_binary() == own


def test_an_nginx_that_is_not_there_is_refused_with_its_name(monkeypatch):
    monkeypatch.setenv("PYOCO_NGINX_BIN", "/nowhere/nginx")
    with pytest.raises(GatewayError, match="PYOCO_NGINX_BIN='/nowhere/nginx' is no program"):
        nginx_binary()


def test_the_dashboards_files_are_part_of_the_package():
    assert (STATIC_DIR / "index.html").is_file()


@pytest.mark.parametrize(
    "name", ["Host", "content-length", "X-Pyoco-Tenant-Id", "X-Request-Id", "X_API_Key", "a b", ""]
)
def test_a_header_that_cannot_carry_a_key_is_refused(tmp_path, name):
    with pytest.raises(ValidationError):
        config(tmp_path, api_key_header=name)
