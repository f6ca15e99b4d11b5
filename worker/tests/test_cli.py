"""The command line: bad arguments get one sentence, an example and exit code 1."""

import json
import os
import subprocess
import sysconfig
from collections.abc import Callable
from pathlib import Path

import pytest

from fleet_testkit.log_check import check_log_lines
from fleet_testkit.programs import run_program

from .conftest import WorkerProcess


def pyoco_worker(folder: Path, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    return run_program(
        ["fleet_worker.cli:main", *arguments],
        folder=folder,
        env={**os.environ, "PYOCO_LOAD_DOTENV": "0", "PYOCO_NATS_URL": "nats://127.0.0.1:9", **env},
    )


def test_help_lists_every_option() -> None:
    command = Path(sysconfig.get_path("scripts")) / "pyoco-worker"
    answer = subprocess.run([command, "--help"], capture_output=True, text=True, timeout=60, check=False)
    assert answer.returncode == 0
    for option in (
        "--nats-url",
        "--nkey-file",
        "--tags",
        "--worker-id",
        "--slots",
        "--flow-resolver",
        "--flows-dir",
        "--wheel-sync",
    ):
        assert option in answer.stdout


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--no-such-option"], "No such option: --no-such-option"),
        (["--slots", "many"], "Invalid value for '--slots'"),
        (["--slots", "0"], "PYOCO_SLOTS=0 is not allowed"),
        (["--tags", "a.b"], "PYOCO_TAGS='a.b' is not allowed"),
        (["--nats-url", "localhost"], "PYOCO_NATS_URL='localhost' is not allowed"),
        (["--flows-dir", "nowhere"], "nowhere does not exist"),
        (["--flow-resolver", "nofunction"], "PYOCO_FLOW_RESOLVER='nofunction' is not allowed"),
        ([], "no flows: give --flow-resolver, --flows-dir or --wheel-sync"),
    ],
)
def test_bad_arguments_get_one_sentence_with_an_example(tmp_path: Path, arguments: list[str], sentence: str) -> None:
    answer = pyoco_worker(tmp_path, *arguments)
    assert answer.returncode == 1
    assert answer.stdout == ""
    assert sentence in answer.stderr
    assert "example: pyoco-worker --nats-url" in answer.stderr
    assert "ERR-PYOCO-0018" in answer.stderr
    assert answer.stderr.count("\n") == 1


def test_a_bad_setting_in_the_environment_is_named(tmp_path: Path) -> None:
    answer = pyoco_worker(tmp_path, PYOCO_NAK_DELAY_SEC="none")
    assert answer.returncode == 1
    assert "PYOCO_NAK_DELAY_SEC='none' is not allowed" in answer.stderr


def test_where_json_is_asked_for_it_is_a_line_of_the_log(tmp_path: Path) -> None:
    for env in (
        {"PYOCO_NAK_DELAY_SEC": "none"},
        {"PYOCO_FLOWS_DIR": str(tmp_path), "PYOCO_WORKER_CREDENTIALS_DIR": str(tmp_path)},
    ):
        answer = pyoco_worker(tmp_path, PYOCO_LOG_FORMAT="json", **env)
        assert (answer.returncode, answer.stderr) == (1, "")
        assert check_log_lines(answer.stdout.splitlines(), of="pyoco-worker") == 1
        line = json.loads(answer.stdout)
        assert (line["level"], line["service"]) == ("CRITICAL", "pyoco-server:worker")


def test_a_resolver_that_cannot_be_imported_ends_the_worker_with_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("import no_such_library\n")
    answer = pyoco_worker(tmp_path, "--flow-resolver", "mine.py:find")
    assert answer.returncode == 1
    line = json.loads(answer.stdout.splitlines()[-1])
    assert (line["level"], line["message"].startswith("the flow resolver ")) == ("CRITICAL", True)
    assert "No module named 'no_such_library'" in line["message"]
    assert answer.stderr == ""


def test_only_of_a_worker_that_is_to_refuse_may_a_test_find_something_else_than_lines(
    start_worker: Callable[..., WorkerProcess],
) -> None:
    worker = start_worker("w1", "--slots", "many", refuses_to_start=True)
    assert worker.process.wait(timeout=60) == 1
    with pytest.raises(AssertionError, match="it is no JSON"):
        worker.check_log()
