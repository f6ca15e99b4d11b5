"""The files that only the image has: its main file and its scripts."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from fleet_gateway.config import header_variable
from fleet_gateway.render import HTTP_TEMPLATE, fill, nginx_command
from fleet_testkit.log_check import check_log_lines

from .test_render import config, image_defaults

ROOM = Path(__file__).parents[1]


def test_nginx_accepts_the_main_file_of_the_image(tmp_path: Path) -> None:
    upstreams = {name: "localhost:18000" for name in image_defaults() if name.endswith("_UPSTREAM")}
    variables = image_defaults() | upstreams
    included = tmp_path / "conf.d"
    included.mkdir()
    (included / "pyoco.conf").write_text(fill(HTTP_TEMPLATE.read_text(), variables))
    # As the entry point does it.
    shutil.copyfile(ROOM / "src" / "fleet_gateway" / "verdicts" / "without-njs.conf", included / "verdicts.conf")
    (tmp_path / "bodies").mkdir()
    main = tmp_path / "nginx.conf"
    text = (ROOM / "nginx.conf").read_text()
    main.write_text(text.replace(" /tmp/", f" {tmp_path}/").replace("/etc/nginx/conf.d", str(included)))
    done = subprocess.run([*nginx_command(main), "-t"], capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, done.stderr
    assert "[warn]" not in done.stderr


def test_the_entry_point_is_good_for_any_shell_and_can_be_executed() -> None:
    script = ROOM / "entrypoint.sh"
    assert script.stat().st_mode & 0o111 == 0o111
    subprocess.run(["sh", "-n", str(script)], check=True, timeout=30)


def what_the_entry_point_says(folder: Path, **env: str) -> str:
    """With a stand-in for the entry point of the public image, which says that it was reached and fails."""
    (folder / "image.sh").write_text("#!/bin/sh\necho went on >&2\nexit 1\n")
    (folder / "image.sh").chmod(0o700)
    (folder / "conf.d").mkdir()
    shutil.copytree(ROOM / "src" / "fleet_gateway" / "verdicts", folder / "verdicts")
    script = (ROOM / "entrypoint.sh").read_text().replace("/tmp/", f"{folder}/").replace("/etc/nginx/", f"{folder}/")
    script = script.replace("/docker-entrypoint.sh", f"{folder}/image.sh")
    (folder / "entrypoint.sh").write_text(script.replace("/errors.sed", str(ROOM / "errors.sed")))
    done = subprocess.run(
        ["sh", str(folder / "entrypoint.sh"), "true"],
        env={"PATH": "/usr/bin:/bin", **image_headers(), **env},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (1, "")
    assert check_log_lines(done.stdout.splitlines(), of="entry point") == 1
    return str(json.loads(done.stdout)["message"])


def image_headers() -> dict[str, str]:
    return {"PYOCO_HTTP_API_KEY_HEADER": image_defaults()["PYOCO_HTTP_API_KEY_HEADER"]}


@pytest.mark.parametrize("publish", ["8000", "10.0.0.5:80", "[::]:8000"])
def test_a_gateway_that_other_machines_can_reach_does_not_start_before_it_is_said_who_may_come_in(
    tmp_path: Path, publish: str
) -> None:
    said = what_the_entry_point_says(tmp_path, PYOCO_PUBLISH=publish, PYOCO_HTTP_AUTH_MODE="")
    assert f"published on {publish}, and none of them would need a key; set PYOCO_HTTP_AUTH_MODE to api_key" in said


@pytest.mark.parametrize(
    ("publish", "mode"),
    [("8000", "none"), ("8000", "api_key"), ("", ""), ("127.0.0.1:80", ""), ("localhost:80", ""), ("[::1]:80", "")],
)
def test_a_gateway_starts_if_it_is_said_or_if_only_this_machine_can_reach_it(
    tmp_path: Path, publish: str, mode: str
) -> None:
    assert what_the_entry_point_says(tmp_path, PYOCO_PUBLISH=publish, PYOCO_HTTP_AUTH_MODE=mode) == "went on"


@pytest.mark.parametrize("hosts", ["fleet.example:8000", "http://fleet.example", "a b c;", "a.example,*", '"'])
def test_a_host_that_is_none_is_refused_by_name(tmp_path: Path, hosts: str) -> None:
    said = what_the_entry_point_says(tmp_path, PYOCO_ALLOWED_HOSTS=hosts)
    assert "PYOCO_ALLOWED_HOSTS names" in said
    assert "name hosts without scheme and port" in said


@pytest.mark.parametrize(
    "hosts", ["", "fleet.example", " Fleet.Example , *.lab.example,localhost,", "192.0.2.7,[2001:DB8::7]"]
)
def test_the_image_knows_the_hosts_that_the_embedded_stack_does(tmp_path: Path, hosts: str) -> None:
    assert what_the_entry_point_says(tmp_path, PYOCO_ALLOWED_HOSTS=hosts) == "went on"
    lines = (ROOM / "entrypoint.sh").read_text().splitlines()
    derive = [line for line in lines if line.startswith(("known=", "PYOCO_GATEWAY_KNOWN_HOSTS="))]
    done = subprocess.run(
        ["sh", "-c", "\n".join([*derive, 'printf %s "$PYOCO_GATEWAY_KNOWN_HOSTS"'])],
        env={"PATH": "/usr/bin:/bin", "PYOCO_ALLOWED_HOSTS": hosts},
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    )
    named = tuple(name.strip() for name in hosts.split(",") if name.strip())
    ours = config(tmp_path, allowed_hosts=named).variables()["PYOCO_GATEWAY_KNOWN_HOSTS"]
    assert sorted(done.stdout.split("\n")) == sorted(
        f"{entry.strip()};" for entry in ours.split(";") if entry.strip()
    )


def test_compose_passes_the_gateway_its_public_address_and_the_auth_mode() -> None:
    gateway = yaml.safe_load((ROOM.parent / "compose.yaml").read_text())["services"]["gateway"]
    assert gateway["ports"] == [gateway["environment"]["PYOCO_PUBLISH"] + ":8000"]
    assert gateway["environment"]["PYOCO_HTTP_AUTH_MODE"] == "${PYOCO_HTTP_AUTH_MODE:-}"


@pytest.mark.parametrize("header", ["X-API-Key", "Fleet-Key-2", "KEY"])
def test_the_image_looks_for_the_key_where_the_embedded_stack_does(header: str) -> None:
    lines = (ROOM / "entrypoint.sh").read_text().splitlines()
    [derive] = [line for line in lines if line.startswith("PYOCO_GATEWAY_API_KEY_VARIABLE=")]
    done = subprocess.run(
        ["sh", "-c", f'{derive}; printf %s "$PYOCO_GATEWAY_API_KEY_VARIABLE"'],
        env={"PATH": "/usr/bin:/bin", "PYOCO_HTTP_API_KEY_HEADER": header},
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    )
    assert done.stdout == header_variable(header)


@pytest.mark.parametrize(
    ("text", "level", "message", "ts"),
    [
        (
            '2026/11/16 13:40:30 [error] 30#30: *7 no answer, request: "GET /runs?flow=x HTTP/1.1", host: "a"',
            "ERROR",
            '*7 no answer, request: "GET /runs?... HTTP/1.1", host: "a"',
            "2026-11-16T13:40:30+01:00",
        ),
        (
            f'2026/11/16 13:40:30 [error] 30#30: *8 no, request: "GET /runs/pyoco_k-1_{"x" * 43}/tasks HTTP/1.1"',
            "ERROR",
            '*8 no, request: "GET /runs/pyoco_k-1_(withheld)/tasks HTTP/1.1"',
            "2026-11-16T13:40:30+01:00",
        ),
        (
            f'2026/11/16 13:40:30 [error] 30#30: *9 no, request: "GET /runs/%70yoco_k-1_{"x" * 43} HTTP/1.1"',
            "ERROR",
            '*9 no, request: "GET (withheld) HTTP/1.1"',
            "2026-11-16T13:40:30+01:00",
        ),
        (
            "2026/11/16 13:40:30 [warn] 30#30: a body is kept",
            "WARNING",
            "a body is kept",
            "2026-11-16T13:40:30+01:00",
        ),
        ("2026/11/16 13:40:30 [notice] 9#9: reload", "INFO", "reload", "2026-11-16T13:40:30+01:00"),
        ("2026/11/16 13:40:30 [alert] 9#9: worse", "CRITICAL", "worse", "2026-11-16T13:40:30+01:00"),
        ("nginx: [emerg] no such directive", "CRITICAL", "no such directive", "2026-01-01T00:00:00+01:00"),
        ("/entrypoint.sh: 3: no", "WARNING", "/entrypoint.sh: 3: no", "2026-01-01T00:00:00+01:00"),
        ('odd " \\ } \x01 \xff', "WARNING", 'odd " \\ } . ..', "2026-01-01T00:00:00+01:00"),
        ("", "WARNING", "", "2026-01-01T00:00:00+01:00"),
    ],
)
def test_the_error_log_is_made_of_lines_of_the_contract(text: str, level: str, message: str, ts: str) -> None:
    """By this machine's sed; tests/containers has the same done by that of the image."""
    program = (ROOM / "errors.sed").read_text()
    done = subprocess.run(
        ["sed", "-E", program.replace("@OFFSET@", "+01:00").replace("@NOW@", "2026-01-01T00:00:00+01:00")],
        input=text.encode() + b"\n",
        env={"PATH": "/usr/bin:/bin", "LC_ALL": "C"},
        capture_output=True,
        check=True,
        timeout=30,
    )
    assert check_log_lines(done.stdout.decode().splitlines(), of="error log") == 1
    line = json.loads(done.stdout)
    assert (line["level"], line["message"], line["ts"]) == (level, message, ts)
