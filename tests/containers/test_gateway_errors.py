"""The gateway's error log, filtered by a script: with the tools of whatever image it stands on, and with BusyBox's.

The public image is made of BusyBox; one that takes its place may have others.
"""

import json
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest

from fleet_testkit.containers.compose import IMAGES_TAG, ROOT, build_images
from fleet_testkit.log_check import check_log_lines
from fleet_testkit.waiting import wait_until

pytestmark = pytest.mark.timeout(1800)

IMAGE = f"pyoco-fleet/gateway:{IMAGES_TAG}"
NGINX = ("nginx", "-g", "daemon off;")
WITH_BUSYBOX = (
    'mkdir /tmp/bin; busybox --install -s /tmp/bin; PATH=/tmp/bin:$PATH exec busybox sh /entrypoint.sh "$@"'
)
TOOLS = {
    "own": [IMAGE, *NGINX],
    "busybox": ["--entrypoint", "sh", IMAGE, "-c", WITH_BUSYBOX, "sh", *NGINX],
}
# They have an address, and nobody is there.
NOBODY = [f"--env=PYOCO_GATEWAY_{name}_UPSTREAM=127.0.0.1:9" for name in ("RUNS", "WORKERS", "WHEELS", "AUTH")]
SECRET = f"pyoco_k-1_{'x' * 43}"
SAID = (
    '2026/11/16 13:40:30 [error] 30#30: *7 no answer, request: "GET /runs?flow=x HTTP/1.1", host: "a"',
    f'2026/11/16 13:40:30 [warn] 30#30: *8 no, request: "GET /runs/{SECRET}/tasks HTTP/1.1"',
    "nginx: [emerg] no such directive",
    'odd " \\ } \x01 \xff',
    "",
)


@pytest.fixture(autouse=True)
def images(engine: None) -> None:
    build_images()


@contextmanager
def started(tools: str, *options: str) -> Iterator[str]:
    container = docker("run", "--detach", *options, *TOOLS[tools]).strip()
    try:
        yield container
    finally:
        docker("rm", "--force", "--volumes", container)


def docker(*arguments: str) -> str:
    return subprocess.run(["docker", *arguments], capture_output=True, text=True, check=True, timeout=120).stdout


def log(container: str) -> list[str]:
    """Only standard output: what goes around the filter is not for anybody's eyes."""
    return docker("logs", container).splitlines()


@pytest.mark.parametrize("tools", TOOLS)
def test_a_gateway_that_cannot_start_says_why(tools: str) -> None:
    with started(tools, "--network=none") as container:
        assert docker("wait", container).strip() == "1"
        lines = log(container)
    check_log_lines(lines, of=tools)
    why = json.loads(lines[0])
    assert (why["level"], "host not found in upstream" in why["message"]) == ("CRITICAL", True)


@pytest.mark.parametrize("tools", TOOLS)
def test_only_hosts_that_it_knows_are_answered(tools: str) -> None:
    with started(tools, *NOBODY, "--env=PYOCO_ALLOWED_HOSTS= Fleet.Example, localhost,*.lab.example,") as container:
        wait_until(lambda: asked(container), within=60, what="nginx listening")
        for host, status in (("fleet.example", 200), ("a.lab.example:8000", 200), ("evil.example", 421)):
            said = f"GET / HTTP/1.0\\r\\nHost: {host}\\r\\n\\r\\n"
            answer = docker("exec", container, "sh", "-c", f"printf '{said}' | busybox nc 127.0.0.1 8000")
            assert answer.startswith(f"HTTP/1.1 {status} "), (host, answer[:200])
    with started(tools, *NOBODY, "--env=PYOCO_ALLOWED_HOSTS=http://fleet.example:8000") as container:
        assert docker("wait", container).strip() == "1"
        [why] = map(json.loads, log(container))
        assert "name hosts without scheme and port" in why["message"]


@pytest.mark.parametrize("tools", TOOLS)
def test_what_goes_wrong_is_reported_at_once(tools: str) -> None:
    def errors(container: str) -> list[str]:
        return [line for line in log(container) if "nginx.error" in line]

    with started(tools, *NOBODY) as container:
        wait_until(lambda: asked(container), within=60, what="nginx listening")
        seen = wait_until(lambda: errors(container), within=30, what="its error, with nothing after it")
    check_log_lines(seen, of=tools)
    line = json.loads(seen[0])
    assert (line["level"], "connect() failed" in line["message"]) == ("ERROR", True)


def asked(container: str) -> bool:
    """Whether nginx has answered; what it answers is that nobody is there."""
    ask = ["docker", "exec", container, "wget", "-q", "-O", "/dev/null", "http://127.0.0.1:8000/health"]
    subprocess.run(ask, capture_output=True, check=False, timeout=30)
    return any('"event":"request"' in line for line in log(container))


def test_busybox_makes_the_same_of_a_line_as_the_sed_of_this_machine() -> None:
    program = (ROOT / "gateway-nginx" / "errors.sed").read_text().replace("@OFFSET@", "+01:00")
    program = program.replace("@NOW@", "2026-01-01T00:00:00+01:00")

    def filtered(sed: Sequence[str]) -> list[str]:
        done = subprocess.run(
            [*sed, "-E", program], input="\n".join(SAID).encode("latin-1") + b"\n", capture_output=True, check=True
        )
        return done.stdout.decode().splitlines()

    lines = filtered(["docker", "run", "--rm", "-i", "--env=LC_ALL=C", "--entrypoint", "busybox", IMAGE, "sed"])
    assert check_log_lines(lines, of="BusyBox") == len(SAID)
    assert lines == filtered(["env", "LC_ALL=C", "sed"])
    assert "x" * 43 not in "".join(lines)
