"""What only the image has: its main file and its scripts."""

import json
import subprocess
from pathlib import Path

import pytest

from fleet_gateway.config import header_variable
from fleet_gateway.render import HTTP_TEMPLATE, fill, nginx_command
from fleet_testkit.log_check import check_log_lines

from .test_render import image_defaults

ROOM = Path(__file__).parents[1]


def test_nginx_accepts_the_main_file_of_the_image(tmp_path: Path) -> None:
    upstreams = {name: "localhost:18000" for name in image_defaults() if name.endswith("_UPSTREAM")}
    variables = image_defaults() | upstreams | {"PYOCO_GATEWAY_TEMP_DIR": str(tmp_path)}
    included = tmp_path / "conf.d"
    included.mkdir()
    (included / "pyoco.conf").write_text(fill(HTTP_TEMPLATE.read_text(), variables))
    # As the entry point does it.
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
