"""Completions are shell scripts that offer commands and their options."""

import io
import subprocess
from argparse import Namespace

import pytest

from pyoco_fleet.cli import texts
from pyoco_fleet.cli.commands.completion import completion
from pyoco_fleet.cli.registry import COMMANDS
from pyoco_fleet.cli.session import Session


def script(shell: str) -> str:
    texts.use("en")
    session = Session(Namespace(shell=shell), "pyoco-client")
    session.out.stdout = io.StringIO()
    assert completion(session) == 0
    return session.out.stdout.getvalue()


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["sub"], ["submit", "submit-yaml"]),
        (["submit", "--param"], ["--param", "--params", "--params-file"]),
        (["--no-color", "completion", "z"], ["zsh"]),
        (["dlq", "requeue", "--ra"], ["--rate"]),
    ],
)
def test_bash_offers_commands_and_options(words: list[str], offered: list[str]) -> None:
    asked = f"""{script("bash")}
COMP_WORDS=(pyoco-client {" ".join(words)}) COMP_CWORD={len(words)}
_pyoco_client
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
    done = subprocess.run(["bash", "-c", asked], capture_output=True, text=True, check=True)
    assert done.stdout.split() == offered


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_get_every_command(shell: str) -> None:
    offered = script(shell)
    assert [name for name in COMMANDS if name not in offered] == []
    assert "params-file" in offered
