"""The contents of the images, and all that can be seen of the containers from outside."""

import json
import select
import socket
import time
from contextlib import ExitStack, suppress

import pytest

from fleet_contracts.status import RunStatus
from fleet_testkit.containers.compose import IMAGES_REVISION, IMAGES_TAG, ComposedFleet
from fleet_testkit.runs import submit, wait_ended, wait_status
from fleet_testkit.waiting import wait_until

# The images may have to be built first, from nothing.
pytestmark = pytest.mark.timeout(1800)

# Of each service: the one package of ours that it has besides contracts and kit.
PARTS = {
    "runs-api": "fleet_runs_api",
    "workers-api": "fleet_workers_api",
    "wheels-api": "fleet_wheels_api",
    "auth": "fleet_auth",
    "worker": "fleet_worker",
}
OURS = [*PARTS, "gateway"]
SERVICES = ["runs-api", "workers-api", "wheels-api", "auth"]
STORES = ["nats", "postgres"]
BUILD_TOOLS = ("gcc", "cc", "make", "pip", "pip3", "uv")
PACKAGES = "import pkgutil; print(*(m.name for m in pkgutil.iter_modules() if m.name.startswith('fleet_')))"
TESTED_WITH = "import importlib.util as i; print(*(n for n in ('pytest', 'mypy', 'hypothesis') if i.find_spec(n)))"


def ask(composed: ComposedFleet, service: str, *command: str) -> str:
    return composed.docker("exec", composed.containers(service)[0], *command).strip()


@pytest.mark.parametrize("service", PARTS)
def test_an_image_holds_one_part_and_nothing_that_builds_or_tests(composed: ComposedFleet, service: str) -> None:
    assert set(ask(composed, service, "python", "-c", PACKAGES).split()) == {
        "fleet_contracts",
        "fleet_kit",
        PARTS[service],
    }
    assert ask(composed, service, "python", "-c", TESTED_WITH) == ""
    # A worker installs wheels, and the libraries of flows, with installers of its own.
    tools = [tool for tool in BUILD_TOOLS if service != "worker" or not tool.startswith(("pip", "uv"))]
    found = ask(composed, service, "sh", "-c", f"for tool in {' '.join(tools)}; do command -v $tool; done; true")
    assert found == ""
    assert ask(composed, service, "sh", "-c", "ls -d /usr/local/lib/python3.*/site-packages/pip || true") == ""


def test_the_gateway_has_no_build_tools(composed: ComposedFleet) -> None:
    found = ask(
        composed, "gateway", "sh", "-c", f"for tool in {' '.join(BUILD_TOOLS)}; do command -v $tool; done; true"
    )
    assert found == ""


@pytest.mark.parametrize("service", OURS)
def test_an_image_names_its_version_its_user_and_its_health_check(composed: ComposedFleet, service: str) -> None:
    image = json.loads(composed.docker("image", "inspect", f"pyoco-fleet/{service}:{IMAGES_TAG}"))[0]["Config"]
    labels = {name.rpartition(".")[2]: value for name, value in image["Labels"].items()}
    assert labels["version"] == IMAGES_TAG
    assert labels["revision"] == IMAGES_REVISION
    if service != "gateway":
        # Its metrics show the same.
        assert f"PYOCO_REVISION={IMAGES_REVISION}" in image["Env"]
    assert labels["title"] == f"pyoco-fleet {service}"
    assert image["User"] == "10001:10001"
    assert image["Healthcheck"]["Test"]


def test_no_container_shows_a_secret(composed: ComposedFleet) -> None:
    """Not in its description, not in its log; each part has only its own, a worker those of workers."""
    texts = ["sh", "secrets", "-c", "for f in $(find /secrets -type f ! -name '*.conf'); do cat $f; done"]
    secrets = set(composed.run("run", "--rm", "--no-deps", "-T", "--entrypoint", *texts).split())
    assert len(secrets) > 20
    for container in composed.listed(stopped=True):
        shown = json.dumps(composed.inspect(str(container.ID))) + composed.log(str(container.ID))
        assert [secret for secret in secrets if secret in shown] == [], container.Name
    own = ask(composed, "worker", "sh", "-c", "ls /secrets")
    assert {name.rpartition(".")[2] for name in own.split()} == {"nk"}
    assert ask(composed, "workers-api", "sh", "-c", "ls /secrets").split() == ["gateway.secret", "nats.nk"]


def test_uploads_do_not_lie_in_memory(composed: ComposedFleet) -> None:
    described = composed.inspect(composed.containers("wheels-api")[0])
    assert {mount["Destination"]: mount["Type"] for mount in described["Mounts"]}["/tmp"] == "volume"
    assert not described["HostConfig"].get("Tmpfs")


def test_bodies_for_which_the_gateway_has_no_room_are_refused_and_nothing_else_is(composed: ComposedFleet) -> None:
    [gateway] = composed.containers("gateway")
    started = composed.inspect(gateway)["State"]["StartedAt"]
    size = 15 * 1024 * 1024
    # Not the last byte: what has come so far is kept.
    begun = b"POST /runs/batch HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % (size + 1) + b" " * size
    with ExitStack() as stack:
        doors = [stack.enter_context(socket.create_connection(("127.0.0.1", composed.port))) for _ in range(12)]
        for door in doors:
            # One that is refused may be closed before it has said everything.
            with suppress(ConnectionError):
                door.sendall(begun)
        answered = wait_until(lambda: select.select(doors, [], [], 0)[0], within=30, what="a refusal")
        head, _, body = answered[0].recv(65536).partition(b"\r\n\r\n")
        error = json.loads(body)["error"]
        assert (head.split()[1], error["code"], error["meta"]["retryable"]) == (b"503", "DEPENDENCY_ERROR", True)
        assert len(answered) < len(doors)
        assert composed.client.get("/runs").status_code == 200
    assert composed.inspect(gateway)["State"]["StartedAt"] == started


@pytest.mark.parametrize("service", [*OURS, *STORES])
def test_no_container_can_fill_the_disk_with_what_it_says(composed: ComposedFleet, service: str) -> None:
    logging = composed.inspect(composed.containers(service)[0])["HostConfig"]["LogConfig"]
    assert (logging["Type"], "max-size" in logging["Config"]) == ("json-file", True)


def test_every_container_stops_within_seconds(composed: ComposedFleet) -> None:
    containers = {service: composed.containers(service) for service in ("gateway", "worker", *SERVICES, *STORES)}
    # One after the other: who depends on others still finds them.
    for service, [container] in containers.items():
        begun = time.monotonic()
        composed.docker("stop", "--time", "15", container)
        # One that had to be killed says 137.
        exit_code = composed.inspect(container)["State"]["ExitCode"]
        assert exit_code == 0, f"{service} after {time.monotonic() - begun:.0f} s"
    composed.up()


def test_a_worker_that_is_stopped_hands_back_what_it_cannot_finish(composed: ComposedFleet) -> None:
    run_id = submit(composed.client, "long", seconds=40)
    wait_status(composed.client, run_id, RunStatus.RUNNING)
    [container] = composed.containers("worker")
    composed.docker("stop", container)
    assert composed.inspect(container)["State"]["ExitCode"] == 0
    assert composed.client.get(f"/runs/{run_id}").json()["status"] == "PENDING"
    composed.client.post(f"/runs/{run_id}/cancel").raise_for_status()
    composed.up()
    [ended] = wait_ended(composed.client, [run_id], within=60)
    assert ended["status"] == "CANCELLED"


def test_a_second_start_changes_nothing(composed: ComposedFleet) -> None:
    before = {container.Name: container.ID for container in composed.listed()}
    composed.up()
    assert {container.Name: container.ID for container in composed.listed()} == before
    wait_until(lambda: composed.client.get("/runs").status_code == 200, what="the gateway answering")
