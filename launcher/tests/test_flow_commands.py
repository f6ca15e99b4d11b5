"""The commands `check` and `try`, which need no stack."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from fleet_testkit.waiting import wait_until

FLOWS = '''
import os
import time

from pyoco import Flow, task

print("imported")


@task
def choose(name: str, times: int = 2):
    """Choose somebody."""
    print(f"greeting {name}")
    return {"name": name * times, "settings": [key for key in os.environ if key.startswith("PYOCO_")]}


@task
def wait(ctx):
    print("waiting")
    while not ctx.is_cancelled:
        time.sleep(0.01)


@task
def fail():
    raise ValueError("no luck")


hello = Flow("hello") >> choose
hello.fleet = {"retry": 3, "timeout_sec": 60, "tag": "gpu"}
waiting = Flow("waiting") >> wait
failing = Flow("failing") >> fail
'''


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "greetings").mkdir()
    (tmp_path / "greetings" / "flows.py").write_text(FLOWS)
    return tmp_path


@pytest.fixture
def started() -> Iterator[list["subprocess.Popen[str]"]]:
    processes: list[subprocess.Popen[str]] = []
    yield processes
    for process in processes:
        process.kill()
        process.communicate()


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "fleet_launcher", *words]


def run(*words: str) -> "subprocess.CompletedProcess[str]":
    env = {**os.environ, "PYOCO_LOAD_DOTENV": "0", "PYOCO_CURSOR_SECRET": "not for flows", "NO_COLOR": "1"}
    return subprocess.run(command(*words), env=env, capture_output=True, text=True, timeout=60, check=False)


def test_check_shows_what_a_worker_would_offer(folder: Path) -> None:
    checked = run("check", str(folder))
    assert checked.returncode == 0, checked.stderr
    assert checked.stdout.splitlines()[3:10] == [
        "hello  (greetings/flows.py:29)",
        "  Choose somebody.",
        "  param     name: string  (required)",
        "  param     times: integer = 2",
        "  graph     choose",
        "  defaults  retry 3, timeout 60 s, tag gpu",
        "",
    ]
    assert checked.stdout.endswith("3 flows, 0 problems\n")
    assert checked.stderr == "imported\n"


def test_check_fails_with_the_place_of_every_problem(folder: Path) -> None:
    (folder / "broken.py").write_text("\nimport not_there\n")
    (folder / "twice.py").write_text("from pyoco import Flow\nmine = Flow('hello')\n")
    checked = run("check", str(folder))
    assert checked.returncode == 1
    assert "problem: broken.py:2: ModuleNotFoundError: No module named 'not_there'\n" in checked.stdout
    assert "in twice.py:2 and in greetings/flows.py:29; give each flow a name of its own" in checked.stdout
    shown = json.loads(run("check", str(folder), "--json").stdout)
    assert [flow["name"] for flow in shown["flows"]] == ["failing", "waiting"]
    assert {(one["place"], one["line"]) for one in shown["broken"]} == {("broken.py", 2), ("greetings/flows.py", 29)}
    nowhere = run("check", str(folder / "nowhere"), "--json")
    assert (nowhere.returncode, json.loads(nowhere.stdout)["broken"][0]["exc_type"]) == (1, "FlowsUnusable")


def test_check_masks_the_values_of_the_flow_env(folder: Path) -> None:
    (folder / "flow.env").write_text("SHOP_KEY=hunter2\n")
    (folder / "shop.py").write_text("import os\nraise ValueError(os.environ['SHOP_KEY'])\n")
    env = {**os.environ, "PYOCO_FLOW_ENV_FILE": str(folder / "flow.env"), "NO_COLOR": "1"}
    checked = subprocess.run(
        command("check", str(folder)), env=env, capture_output=True, text=True, timeout=60, check=False
    )
    assert "problem: shop.py:2: ValueError: ***\n" in checked.stdout
    assert "hunter2" not in checked.stdout


def test_try_shows_tasks_and_output_and_prints_the_result(folder: Path) -> None:
    tried = run("try", "hello", "-p", "name=Ada", "-p", "times=3", "--flows-dir", str(folder))
    assert tried.returncode == 0, tried.stderr
    assert json.loads(tried.stdout) == {"name": "AdaAdaAda", "settings": []}
    lines = tried.stderr.splitlines()
    assert lines[-3:-1] == ["choose  RUNNING", "choose | greeting Ada"]
    assert lines[-1].startswith("choose  SUCCEEDED  0.")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["failing"], 'in fail\n    raise ValueError("no luck")\nValueError: no luck\nFAILED: ValueError: no luck\n'),
        (
            ["hello", "-p", "nam=1"],
            "param 'name' is missing: the task 'choose' needs it; no task takes the param 'nam'",
        ),
        (["other"], "flow 'other' is not known to this worker; known flows: failing, hello, waiting\n"),
        (["hello", "-p", "name"], "pyoco-server: -p name is not of the form NAME=VALUE\n"),
    ],
)
def test_try_says_why_a_flow_has_failed(folder: Path, words: list[str], said: str) -> None:
    tried = run("try", *words, "--flows-dir", str(folder))
    assert (tried.returncode, tried.stdout) == (1, "")
    assert said in tried.stderr


def test_ctrl_c_cancels_what_is_tried_and_leaves_nothing_behind(
    folder: Path, started: list["subprocess.Popen[str]"]
) -> None:
    process = subprocess.Popen(
        command("try", "waiting", "--flows-dir", str(folder)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    started.append(process)
    assert process.stderr is not None
    assert any("wait | waiting" in line for line in process.stderr)
    [runner] = psutil.Process(process.pid).children()
    process.send_signal(signal.SIGINT)
    _, rest = process.communicate(timeout=30)
    assert process.returncode == 130
    assert rest.startswith("cancelling; Ctrl-C again to end it at once\nwait  SUCCEEDED")
    wait_until(lambda: not runner.is_running(), what="the runner's end")
