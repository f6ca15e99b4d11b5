"""`docker compose up` and what an operator does next."""

import pytest

from fleet_contracts.status import RunStatus
from fleet_testkit.containers.compose import ComposedFleet
from fleet_testkit.runs import submit, wait_ended, wait_status
from fleet_testkit.waiting import wait_until

# The images may have to be built first, from nothing.
pytestmark = pytest.mark.timeout(1800)

OURS = ["runs-api", "workers-api", "wheels-api", "auth", "gateway", "worker"]


def test_a_run_submitted_right_after_the_start_completes(composed: ComposedFleet) -> None:
    run_id = submit(composed.client, "hello", name="compose")
    [run] = wait_ended(composed.client, [run_id])
    assert run["status"] == "COMPLETED", run


def test_only_the_gateway_is_published(composed: ComposedFleet) -> None:
    published = [
        container.Service
        for container in composed.listed()
        if any(publisher.PublishedPort for publisher in container.Publishers or ())
    ]
    assert published == ["gateway"]


@pytest.mark.parametrize("service", OURS)
def test_a_container_is_nobody_and_can_write_nothing_of_its_own(composed: ComposedFleet, service: str) -> None:
    [container] = composed.containers(service)
    described = composed.inspect(container)
    assert described["HostConfig"]["ReadonlyRootfs"] is True
    assert described["HostConfig"]["CapDrop"] == ["ALL"]
    assert described["HostConfig"]["Memory"] > 0
    assert composed.docker("exec", container, "id", "-u").strip() == "10001"


def test_a_flow_reaches_nats_and_the_gateway_and_nothing_else_of_the_fleet(composed: ComposedFleet) -> None:
    services = ("gateway", "runs-api", "workers-api", "wheels-api", "auth")
    doors = {"nats": 4222, "postgres": 5432} | dict.fromkeys(services, 8000)
    addresses = {
        f"{service}:{network['IPAddress']}:{port}"
        for service, port in [*doors.items(), ("nats", 8222)]
        for network in composed.inspect(composed.containers(service)[0])["NetworkSettings"]["Networks"].values()
    }
    assert len(addresses) > len(doors)
    program = (
        "import socket, sys\n"
        "for name in sys.argv[1:]:\n"
        "    service, host, port = name.split(':')\n"
        "    try:\n"
        "        socket.create_connection((host, int(port)), 1).close()\n"
        "        print(f'{service}:{port}')\n"
        "    except OSError:\n"
        "        pass\n"
    )
    [worker] = composed.containers("worker")
    reached = composed.docker("exec", worker, "python", "-c", program, *sorted(addresses)).split()
    assert sorted(reached) == ["gateway:8000", "nats:4222"]


def test_more_workers_get_names_of_their_own(composed: ComposedFleet) -> None:
    composed.up("--scale", "worker=3", "--no-recreate")

    def names() -> list[str] | None:
        found = sorted(worker["worker_id"] for worker in composed.client.get("/workers").json())
        return found if len(found) == 3 else None

    assert wait_until(names, within=60, what="three workers") == ["worker-1", "worker-2", "worker-3"]


def test_a_worker_that_is_killed_loses_no_run(composed: ComposedFleet) -> None:
    composed.up("--scale", "worker=1")
    held = submit(composed.client, "long", seconds=8)
    wait_status(composed.client, held, RunStatus.RUNNING, within=60)
    composed.docker("kill", composed.containers("worker")[0])
    composed.up()
    [ended] = wait_ended(composed.client, [held], within=120)
    # Or more: on a machine that stands still for some seconds, a living worker is taken for a lost one, too.
    assert (ended["status"], ended["attempt"] >= 2) == ("COMPLETED", True)


def test_a_service_that_is_made_anew_is_found_by_the_gateway(composed: ComposedFleet) -> None:
    composed.run("up", "--detach", "--wait", "--force-recreate", "--no-deps", "workers-api")
    wait_until(lambda: composed.client.get("/workers").status_code == 200, within=60, what="the new address known")
