"""More workers by their credentials, data of earlier versions, and a NATS that somebody else runs."""

import asyncio
import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import nats
import pytest

from fleet_contracts.names import WireNames
from fleet_testkit.log_check import REFUSED_ON_PURPOSE
from fleet_testkit.nats_resources import make_all
from fleet_testkit.nats_server import NatsServer
from fleet_testkit.programs import Program
from fleet_testkit.runs import submit, wait_ended
from fleet_testkit.stack import Stack
from fleet_testkit.waiting import wait_until
from fleet_testkit.wire import Wire

pytestmark = [
    pytest.mark.long,
    pytest.mark.embedded_only("commands of the launcher, and a NATS that it does not start"),
]


def runs_on(stack: Stack, tag: str) -> str:
    """The worker that executed a run of the tag."""
    [ended] = wait_ended(stack.client, [submit(stack.client, "hello", tag=tag, name="Ada")])
    assert ended["status"] == "COMPLETED", ended
    worker_id: str = ended["worker_id"]
    return worker_id


@contextmanager
def running(command: list[str], log: Path) -> Iterator[None]:
    with log.open("wb") as output:
        program = Program(command, env={**os.environ, "PYOCO_LOAD_DOTENV": "0"}, stdout=output, stderr=output)
    try:
        yield
        program.send_signal(signal.SIGTERM)
        assert program.wait(timeout=30) == 0, log.read_text()
    finally:
        program.kill()


def test_one_more_worker_is_one_command(stack: Stack, tmp_path: Path) -> None:
    command = ["fleet_launcher.cli:main", "worker", "--data-dir", str(stack.data_dir), "--slots", "1"]
    with (
        running([*command, "--tags", "more"], tmp_path / "one.log"),
        running([*command, "--tags", "more,most"], tmp_path / "two.log"),
    ):
        first = runs_on(stack, "more")
        second = runs_on(stack, "most")

        def both() -> dict[str, list[str]] | None:
            workers = [worker for worker in stack.client.get("/workers").json() if "-extra-" in worker["worker_id"]]
            return {worker["worker_id"]: worker["tags"] for worker in workers} if len(workers) == 2 else None

        extras = wait_until(both, within=30, what="both workers listed")
        assert extras
        assert extras[second] == ["more", "most"]
        assert first in extras
    # A name is free again when its worker has gone.
    with running([*command, "--tags", "more"], tmp_path / "three.log"):
        assert runs_on(stack, "more") in extras


def test_a_worker_elsewhere_needs_only_its_file(stack: Stack, tmp_path: Path, flows_dir: Path) -> None:
    seed, far = tmp_path / "far.nk", f"far-{REFUSED_ON_PURPOSE}"
    made = stack.run("worker-credentials", "--worker-id", far, "--tags", "far", "--out", str(seed))
    assert made.returncode == 0, made.stderr
    assert f"--nkey-file {seed} --worker-id {far} --tags far" in made.stdout
    assert seed.read_text().strip() not in made.stdout
    assert seed.stat().st_mode & 0o777 == 0o600
    assert f"{far}  far  U" in stack.run("worker-credentials", "--list").stdout
    again = stack.run("worker-credentials", "--worker-id", far, "--tags", "far", "--out", str(seed))
    assert (again.returncode, "exists already" in again.stderr) == (1, True)

    worker = "fleet_worker.cli:main"
    common = ["--nats-url", stack.nats_url, "--nkey-file", str(seed), "--worker-id", far, "--slots", "1"]
    log = tmp_path / "far.log"
    with running([worker, *common, "--tags", "far", "--flows-dir", "examples"], log):
        assert runs_on(stack, "far") == far
    assert "ermission" not in log.read_text()

    # More than was granted is refused with a sentence, and nothing is taken.
    with running([worker, *common, "--tags", "far,default", "--flows-dir", "examples"], log):
        sentence = "may not take jobs of tag default; make credentials for it with"
        wait_until(lambda: sentence in log.read_text(), within=20, what="the refusal")

    assert stack.run("worker-credentials", "--remove", far).returncode == 0
    assert stack.run("worker-credentials", "--remove", far).returncode == 1
    with running([worker, *common, "--tags", "far", "--flows-dir", "examples"], log):
        wait_until(
            lambda: "NATS does not accept this process's user" in log.read_text(),
            within=20,
            what="the refusal",
        )


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--worker-id", "a.b", "--tags", "x"], "'a.b' is no worker id"),
        (["--worker-id", "a", "--tags", "x.>"], "'x.>' is no tag"),
        (["--worker-id", "../a", "--tags", "x"], "'../a' is no worker id"),
        ([], "give one of --worker-id NAME, --list, --remove NAME"),
        (["--remove", "../nobody"], "no worker ../nobody has credentials here"),
    ],
)
def test_bad_names_of_workers_are_refused(tmp_path: Path, arguments: list[str], sentence: str) -> None:
    refused = Stack(tmp_path / "data").run("worker-credentials", *arguments)
    assert refused.returncode == 1
    assert sentence in refused.stderr


def test_data_of_a_version_without_users_is_kept_and_a_peer_may_still_come_without_one(tmp_path: Path) -> None:
    before = NatsServer(tmp_path / "data")
    before.start()

    async def fill() -> None:
        client = await nats.connect(before.url)
        js = client.jetstream()
        await make_all(js, WireNames(), tags=["default"])
        history = await js.create_key_value(bucket="pyoco_auth", direct=True)
        await history.put("kept", b"of an earlier version")
        await client.close()

    asyncio.run(fill())
    before.stop()
    (tmp_path / "data" / "nats.conf").unlink()

    async def look(client: nats.NATS) -> bytes:
        return (await (await client.jetstream().key_value("pyoco_auth")).get("kept")).value or b""

    # The keys that it keeps do not say whether callers needed one.
    with Stack(tmp_path / "data", "--auth", "none") as stack:
        assert Wire(stack.nats_url).use(look) == b"of an earlier version"
        runs_on(stack, "default")
    with Stack(tmp_path / "data", env={"PYOCO_NATS_AUTH": "off"}) as stack:
        assert Wire(stack.nats_url).use(look) == b"of an earlier version"
        runs_on(stack, "default")

        async def consume_as_a_peer(client: nats.NATS) -> str:
            js = client.jetstream()
            jobs = await js.pull_subscribe("pyoco.work.peer", durable="pyoco_workers_peer", stream="PYOCO_WORK")
            run_id = submit(stack.client, "of-the-peer", tag="peer")
            [message] = await jobs.fetch(1, timeout=30)
            assert json.loads(message.data)["run_id"] == run_id
            now = time.time()
            snapshot = {"run_id": run_id, "flow_name": "of-the-peer", "params": {}, "status": "COMPLETED"}
            snapshot |= {"tasks": {}, "heartbeat_at": now, "updated_at": now, "start_time": now, "end_time": now}
            await (await js.key_value("pyoco_runs")).put(run_id, json.dumps(snapshot).encode())
            await message.ack_sync()
            return run_id

        run_id = Wire(stack.nats_url).use(consume_as_a_peer)
        [ended] = wait_ended(stack.client, [run_id])
        assert ended["status"] == "COMPLETED"


def test_a_nats_of_ones_own_can_have_the_same_users(tmp_path: Path) -> None:
    stack = Stack(tmp_path / "data", env={"PYOCO_NATS_AUTH": "nkey"})
    printed = stack.run("nats-config")
    assert printed.returncode == 0, printed.stderr
    server = NatsServer(tmp_path / "elsewhere", more_config=printed.stdout)
    server.start()
    try:
        with Stack(
            tmp_path / "data", "--nats-url", server.url, with_nats=False, env={"PYOCO_NATS_AUTH": "nkey"}
        ) as stack:
            assert runs_on(stack, "default").endswith("-1")
            assert stack.client.get("/workers").status_code == httpx.codes.OK
    finally:
        server.kill()
