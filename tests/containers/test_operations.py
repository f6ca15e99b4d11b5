"""The pages on containers in docs/how-to keep their promises, with their very commands."""

import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from fleet_contracts.status import RunStatus
from fleet_testkit.chaos.load import Load
from fleet_testkit.containers.compose import IMAGES_TAG, ROOT, ComposedFleet, run_command
from fleet_testkit.runs import submit, wait_ended
from fleet_testkit.waiting import wait_until
from fleet_testkit.wheels import build_wheel, upload_of

pytestmark = pytest.mark.timeout(1800)

IMAGES = ("runs-api", "workers-api", "wheels-api", "auth", "gateway", "worker")
RESTORE_LEDGER = ["pg_restore", "-U", "pyoco", "-d", "pyoco", "--exit-on-error", "--single-transaction"]
ALL_BUT_STORES = ("gateway", "worker", "runs-api", "workers-api", "wheels-api", "auth")


@pytest.fixture(scope="module")
def kept(engine: None) -> Iterator[ComposedFleet]:
    """A fleet that wants keys, to be lost and brought back, more than once."""
    with ComposedFleet(f"{IMAGES_TAG}-operations", PYOCO_HTTP_AUTH_MODE="api_key") as fleet:
        yield fleet


class Possessions:
    """The data of a fleet before something is lost, which it must have afterwards."""

    def __init__(self, fleet: ComposedFleet, folder: Path, name: str) -> None:
        self._fleet = fleet
        issue_key(fleet)
        self._completed_before = completed(fleet)
        self._wheel = build_wheel(folder, name)
        fleet.client.post("/wheels", files=upload_of(self._wheel)).raise_for_status()
        self._ended = wait_ended(
            fleet.client, [submit(fleet.client, "hello", name=str(n)) for n in range(5)], within=120
        )
        # Nobody to execute these, until everything is back.
        fleet.run("stop", "worker")
        self._unfinished = [submit(fleet.client, "hello", name=f"later {n}") for n in range(10)]

    def are_there(self) -> None:
        """The key opens, the wheel is the same, ended runs are shown, unfinished ones end."""
        client = self._fleet.client
        assert client.get("/runs").status_code == 200
        assert client.get(f"/wheels/{self._wheel.name}").content == self._wheel.read_bytes()
        history = client.get("/wheels/history", params={"wheel_name": self._wheel.name}).json()
        assert [entry["action"] for entry in history] == ["upload"]
        for run in self._ended:
            again = client.get(f"/runs/{run['run_id']}", params={"include": "full"}).json()
            assert (again["status"], again["result"]) == ("COMPLETED", run["result"])
        finished = wait_ended(client, self._unfinished, within=120)
        assert {run["status"] for run in finished} == {"COMPLETED"}
        # Sent again where it was lost, and counted once.
        wanted = self._completed_before + len(self._ended) + len(self._unfinished)
        wait_until(lambda: completed(self._fleet) == wanted, within=30, what=f"{wanted} runs counted")


def issue_key(fleet: ComposedFleet) -> None:
    """One that may do everything; the client has it from then on."""
    create = ["pyoco-server-admin", "api-key", "create", "--tenant", "acme", "--scopes", "admin", "--json"]
    issued, _, _ = fleet.compose.exec_in_container(create, "auth")
    fleet.client.headers["X-API-Key"] = json.loads(issued)["api_key"]
    wait_until(lambda: fleet.client.get("/runs").status_code == 200, within=30, what="the key known")


def completed(fleet: ComposedFleet) -> int:
    """How many runs the ledger counts as completed."""
    lines = fleet.client.get("/metrics").text.splitlines()
    [line] = [line for line in lines if line.startswith('pyoco_runs_total{status="COMPLETED"}')]
    return int(float(line.split()[-1]))


def unfinished(fleet: ComposedFleet) -> list[str]:
    runs = fleet.ledger("SELECT run_id, status FROM runs")
    return [run_id for run_id, status in runs if not RunStatus(status).is_terminal]


def operate(fleet: ComposedFleet, *command: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(command, cwd=ROOT, env=fleet.env, capture_output=True, text=True, timeout=600, check=False)


def backed_up(fleet: ComposedFleet, folder: Path) -> Path:
    backup = folder / "backup"
    done = operate(fleet, "ops/backup", str(backup))
    assert done.returncode == 0, done.stderr
    assert {file.stat().st_mode & 0o077 for file in (backup, *backup.iterdir())} == {0}
    return backup


def test_a_fleet_that_was_lost_comes_back_from_its_backup(
    kept: ComposedFleet, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    possessions = Possessions(kept, tmp_path, "lost")
    backup = backed_up(kept, tmp_path)
    occupied = operate(kept, "ops/restore", str(backup))
    assert (occupied.returncode, "to give up all of them" in occupied.stderr) == (1, True)
    kept.remove()
    # A volume of a layer that is not named now does not matter.
    labels = (f"com.docker.compose.project={kept.project}", "com.docker.compose.volume=prometheus")
    others = kept.docker("volume", "create", *(f"--label={label}" for label in labels)).strip()
    begun = time.monotonic()
    done = operate(kept, "ops/restore", str(backup))
    kept.docker("volume", "rm", others)
    assert done.returncode == 0, done.stderr
    with capsys.disabled():
        print(f"\n[figures] a fleet restored in {time.monotonic() - begun:.0f} s")
    possessions.are_there()


def test_a_ledger_elsewhere_is_not_taken_for_saved(composed: ComposedFleet, tmp_path: Path) -> None:
    elsewhere = composed.layered(PYOCO_RUNS_DATABASE_URL="postgresql://pyoco@elsewhere:5432/pyoco")
    backup = tmp_path / "backup"
    refused = operate(elsewhere, "ops/backup", str(backup))
    assert (refused.returncode, "in another PostgreSQL" in refused.stderr, backup.exists()) == (1, True, False)
    done = operate(elsewhere, "ops/backup", str(backup), "--without-ledger")
    assert (done.returncode, "the ledger is not in it" in done.stdout) == (0, True), done.stderr
    assert {file.name for file in backup.iterdir()} == {"streams.tar", "secrets.tar", "SHA256SUMS"}
    for fleet, why in ((elsewhere, "in another PostgreSQL"), (composed, "there is no ledger in")):
        refused = operate(fleet, "ops/restore", str(backup))
        assert (refused.returncode, why in refused.stderr) == (1, True), refused.stderr


def feed(fleet: ComposedFleet, file: Path, *command: str) -> None:
    """docker compose COMMAND < FILE"""
    with file.open("rb") as content:
        subprocess.run(
            ["docker", "compose", *command], cwd=ROOT, env=fleet.env, stdin=content, timeout=120, check=True
        )


def test_a_nats_that_lost_its_disk_gets_keys_and_wheels_back(kept: ComposedFleet, tmp_path: Path) -> None:
    possessions = Possessions(kept, tmp_path, "wiped")
    backup = backed_up(kept, tmp_path)
    kept.run("stop", *ALL_BUT_STORES)
    kept.run("rm", "--stop", "--force", "nats")
    kept.docker("volume", "rm", f"{kept.project}_nats")
    kept.run("up", "--detach", "--wait", "nats")
    feed(kept, backup / "streams.tar", "run", "--rm", "--no-deps", "-T", "operator", "restore")
    kept.up()
    possessions.are_there()


def test_a_postgresql_that_lost_its_data_goes_back_to_the_backup(kept: ComposedFleet, tmp_path: Path) -> None:
    possessions = Possessions(kept, tmp_path, "restored")
    backup = backed_up(kept, tmp_path)
    late = submit(kept.client, "hello", name="accepted after the backup")
    kept.run("stop", "gateway", "worker", "runs-api")
    kept.run("rm", "--stop", "--force", "postgres", "migrate")
    kept.docker("volume", "rm", f"{kept.project}_postgres")
    kept.run("up", "--detach", "--wait", "postgres")
    feed(kept, backup / "ledger.dump", "exec", "-T", "postgres", *RESTORE_LEDGER)
    kept.up()
    possessions.are_there()
    # Only the ledger knows the owner of a run, and it has no record of this one, whatever NATS still has of it.
    assert kept.client.get(f"/runs/{late}").status_code == httpx.codes.NOT_FOUND
    assert late not in {run["run_id"] for run in kept.client.get("/runs").json()}


def test_secrets_that_were_lost_are_made_anew_by_one_command(kept: ComposedFleet, tmp_path: Path) -> None:
    possessions = Possessions(kept, tmp_path, "bare")
    kept.down()
    volumes = kept.docker("volume", "ls", "--quiet", "--filter", f"label=com.docker.compose.project={kept.project}")
    lost = [volume for volume in volumes.split() if volume.endswith("-secrets")]
    kept.docker("volume", "rm", *lost)
    done = operate(kept, "ops/rotate")
    assert (len(lost), done.returncode) == (9, 0), done.stderr
    # The pepper was among them.
    assert kept.client.get("/runs").status_code == 403
    issue_key(kept)
    possessions.are_there()


def test_a_fleet_that_asked_for_keys_is_opened_only_by_saying_so(kept: ComposedFleet) -> None:
    issue_key(kept)
    silent = kept.layered(PYOCO_HTTP_AUTH_MODE="")
    with pytest.raises(AssertionError, match="set PYOCO_HTTP_AUTH_MODE to api_key again, or to none"):
        silent.up()
    kept.up()
    assert httpx.get(f"{kept.url}/runs").status_code in (401, 403)


def test_a_new_pepper_makes_every_key_unknown(kept: ComposedFleet) -> None:
    issue_key(kept)
    once = ["run", "--rm", "--no-deps", "-T"]
    kept.run(*once, "--entrypoint", "rm", "secrets", "-f", "/secrets/auth/pepper")
    kept.run(*once, "secrets")
    kept.run("restart", "auth")
    wait_until(lambda: kept.client.get("/runs").status_code == 403, within=60, what="the key unknown")
    issue_key(kept)


def test_an_upgrade_under_load_loses_no_answered_run(
    composed: ComposedFleet, capsys: pytest.CaptureFixture[str]
) -> None:
    """From images of one tag to those of another; what is inside is the same here."""
    before = f"{IMAGES_TAG}-before"
    for image in IMAGES:
        composed.docker("tag", f"pyoco-fleet/{image}:{IMAGES_TAG}", f"pyoco-fleet/{image}:{before}")
    earlier = {run_id for (run_id,) in composed.ledger("SELECT run_id FROM runs")}
    composed.layered(PYOCO_VERSION=before).up("--scale", "worker=2")
    with Load(composed.url, "hello", {}, label="name") as load:
        wait_until(lambda: len(load.accepted) > 20, within=60, what="the load begun")
        begun = time.monotonic()
        composed.up("--scale", "worker=2")
        upgraded = time.monotonic()
        wait_until(lambda: load.accepted_since(upgraded) > 20, within=60, what="the new version accepting runs")
    wait_ended(composed.client, load.run_ids, within=180)
    # None is stuck, also none of those whose answer was unclear.
    wait_until(lambda: not unfinished(composed), within=60, what="the end of every run")
    statuses = {
        run_id: s for run_id, s in composed.ledger("SELECT run_id, status FROM runs") if run_id not in earlier
    }
    assert (statuses.keys() >= set(load.run_ids), set(statuses.values())) == (True, {"COMPLETED"})
    images = {composed.inspect(str(container.ID))["Config"]["Image"] for container in composed.listed()}
    assert not [image for image in images if image.endswith(before)]
    with capsys.disabled():
        print(f"\n[figures] upgrade in {upgraded - begun:.0f} s under load: {load.figures()}")


def test_a_worker_elsewhere_is_let_in_with_its_own_tags_and_sent_away(
    composed: ComposedFleet,
) -> None:
    composed.run("run", "--rm", "--no-deps", "-T", "secrets", "--grant", "far=gpu")
    run_command(["ops/reload-nats"], composed.env)
    seed = ["run", "--rm", "--no-deps", "-T", "--entrypoint", "cat", "secrets", "/secrets/operator/workers/far.nk"]
    assert composed.run(*seed).startswith("SU")
    # In a container of its own, with a volume for its seed, as one on another machine would have a file.
    volume = f"{composed.project}_operator-secrets:/operator:ro"
    options = ["--detach", "--rm", "--no-deps", "--volume", volume, "--name", f"{composed.project}-far"]
    settings = ["-e", "PYOCO_WORKER_CREDENTIALS_DIR=", "-e", "PYOCO_NATS_NKEY_FILE=/operator/workers/far.nk"]
    naming = ["-e", "PYOCO_WORKER_ID=far", "-e", "PYOCO_TAGS=gpu"]
    far = composed.run("run", *options, *settings, *naming, "worker").strip()
    try:
        [ended] = wait_ended(composed.client, [submit(composed.client, "hello", tag="gpu", name="far")], within=60)
        assert (ended["status"], ended["worker_id"]) == ("COMPLETED", "far")
        composed.run("run", "--rm", "--no-deps", "-T", "secrets", "--revoke", "far")
        run_command(["ops/reload-nats"], composed.env)
        refused = "does not accept this process's user"
        wait_until(lambda: refused in composed.log(far), within=60, what="the worker being refused")
    finally:
        composed.docker("kill", far)


def test_a_nats_that_has_read_its_users_again_is_still_started_by_itself_when_it_ends(
    composed: ComposedFleet,
) -> None:
    [nats] = composed.containers("nats")
    run_command(["ops/reload-nats"], composed.env)
    before = composed.inspect(nats)["RestartCount"]
    # An end that nobody has asked the engine for.
    composed.docker("exec", nats, "sh", "-c", "kill -TERM 1")
    wait_until(lambda: composed.inspect(nats)["RestartCount"] > before, within=30, what="NATS started again")
    [ended] = wait_ended(
        composed.client, [wait_until(lambda: _accepted(composed), within=60, what="a run")], within=60
    )
    assert ended["status"] == "COMPLETED"


def _accepted(fleet: ComposedFleet) -> str | None:
    """The id of a run, as soon as one is accepted."""
    answer = fleet.client.post("/runs", json={"flow_name": "hello"})
    return str(answer.json()["run_id"]) if answer.is_success else None


# The next test makes every container anew, with the tags of before.
def test_the_command_in_waiting_detail_keeps_layers_and_the_number_of_workers(
    composed: ComposedFleet, tmp_path: Path
) -> None:
    layer = tmp_path / "layer.yaml"
    layer.write_text("services: { worker: { environment: { LAYER: kept } } }\n")
    composed.layered(str(layer)).up("--scale", "worker=2")
    run_id = submit(composed.client, "hello", tag="gpu", name="tagged")

    def command_shown() -> str:
        """The command, shown once the workers that an earlier test has stopped no longer count as alive."""
        return str(composed.client.get(f"/runs/{run_id}").json()["waiting_detail"]).partition(" with: ")[2]

    command = wait_until(command_shown, within=60, what="a command that starts a worker")
    assert command == "PYOCO_TAGS=default,gpu ops/up"
    typed = subprocess.run(
        ["sh", "-c", command], cwd=ROOT, env=composed.env, capture_output=True, text=True, timeout=300, check=False
    )
    assert typed.returncode == 0, typed.stderr
    [ended] = wait_ended(composed.client, [run_id], within=60)
    assert ended["status"] == "COMPLETED"
    workers = composed.containers("worker")
    assert len(workers) == 2
    assert "LAYER=kept" in composed.inspect(workers[0])["Config"]["Env"]


def test_every_secret_but_the_pepper_is_replaced_by_one_command(composed: ComposedFleet) -> None:
    read_all = ["sh", "secrets", "-c", "cd /secrets && for f in $(find . -type f); do echo $f $(cat $f); done"]

    def secrets() -> dict[str, str]:
        listed = composed.run("run", "--rm", "--no-deps", "-T", "--entrypoint", *read_all)
        return dict(line.split(" ", 1) for line in listed.splitlines() if "users.conf" not in line)

    before = secrets()
    done = operate(composed, "ops/rotate")
    assert done.returncode == 0, done.stderr
    after = secrets()
    assert [name for name in before if after[name] == before[name]] == ["./auth/pepper"]
    [ended] = wait_ended(composed.client, [submit(composed.client, "hello", name="anew")], within=60)
    assert ended["status"] == "COMPLETED"
