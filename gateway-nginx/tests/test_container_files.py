"""What only the image has: its main file and its scripts."""

import subprocess
from pathlib import Path

import pytest

from fleet_gateway.config import header_variable
from fleet_gateway.render import HTTP_TEMPLATE, fill, nginx_command

from .test_render import image_defaults

ROOM = Path(__file__).parents[1]


def test_nginx_accepts_the_main_file_of_the_image(tmp_path: Path) -> None:
    upstreams = {name: "localhost:18000" for name in image_defaults() if name.endswith("_UPSTREAM")}
    variables = image_defaults() | upstreams | {"PYOCO_GATEWAY_TEMP_DIR": str(tmp_path)}
    (tmp_path / "pyoco.conf").write_text(fill(HTTP_TEMPLATE.read_text(), variables))
    main = tmp_path / "nginx.conf"
    text = (ROOM / "nginx.conf").read_text()
    main.write_text(text.replace("/etc/nginx/conf.d", str(tmp_path)).replace(" /tmp/", f" {tmp_path}/"))
    done = subprocess.run([*nginx_command(main), "-t"], capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, done.stderr
    assert "[warn]" not in done.stderr


def test_the_scripts_are_good_for_any_shell_and_can_be_executed() -> None:
    for script in ("entrypoint.sh", "health.sh"):
        assert (ROOM / script).stat().st_mode & 0o111 == 0o111
        subprocess.run(["sh", "-n", str(ROOM / script)], check=True, timeout=10)


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
        timeout=10,
    )
    assert done.stdout == header_variable(header)
