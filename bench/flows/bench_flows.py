"""The flows that both sides execute: one that does next to nothing, and one that can be held."""

import os
import time
from pathlib import Path
from typing import Any

from pyoco import Flow, task

_LONGEST_HOLD_SECONDS = 120.0


def one() -> int:
    return 1


def two(one: int) -> int:
    return one + 1


def hold(marks: str, gate: str) -> str:
    """Leave a mark at the beginning, and end when the gate is opened."""
    with open(marks, "a") as file:
        file.write(f"{os.getpid()}\n")
    deadline = time.monotonic() + _LONGEST_HOLD_SECONDS
    while not Path(gate).exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    return "held"


tiny = Flow("tiny") >> task(one) >> task(two)
held = Flow("held") >> task(hold)


def resolve(name: str) -> Any:
    """For the peer's worker, which wants a function where ours takes a folder."""
    return {"tiny": tiny, "held": held}[name]
