"""`pyoco-server` with a part table of stand-ins: STANDIN_PARTS='[{"name": …, "behaviours": […]}, …]'"""

import ctypes
import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fleet_launcher.cli import main
from fleet_launcher.stack.health import Check
from fleet_launcher.stack.parts import Part, StopStep
from fleet_launcher.stack.ports import check_gateway_port
from fleet_launcher.stack.stack import StackPlan

SCRIPT = Path(__file__).with_name("standin_part.py")


def standin(folder: Path, name: str, behaviours: Sequence[str] = (), **changes: Any) -> Part:
    """A part that is healthy while its ready file holds the pid of a living process."""
    ready = folder / f"{name}.ready"
    values: dict[str, Any] = {
        "command": [sys.executable, "-I", "-S", str(SCRIPT), str(folder), name, *behaviours],
        "health": _file_check(ready),
        "address": f"stand-in:{name}",
        "start_stage": 0,
        "stop_stage": 0,
        "stop": (StopStep(signal.SIGTERM, 5.0),),
    }
    return Part(name=name, **(values | changes))


def _file_check(ready: Path) -> Check:
    def holds_a_living_pid() -> bool:
        try:
            os.kill(int(ready.read_text()), 0)
        except (OSError, ValueError):
            return False
        return True

    async def check(_: float) -> str | None:
        return None if holds_a_living_pid() else "no ready file"

    return check


async def build(plan: StackPlan) -> list[Part]:
    check_gateway_port(plan.settings.host, plan.settings.port)
    if sys.platform == "linux":
        # PR_GET_DUMPABLE: whether other processes of the same user may look into this one.
        (plan.folder.path / "launcher.dumpable").write_text(str(ctypes.CDLL(None).prctl(3)))
    parts = []
    for entry in json.loads(os.environ["STANDIN_PARTS"]):
        seconds = entry.pop("stop_seconds", 5.0)
        death_signal = signal.Signals[entry.pop("death_signal", "SIGKILL")]
        stop = (StopStep(signal.SIGTERM, seconds),)
        parts.append(standin(plan.folder.path, **entry, stop=stop, death_signal=death_signal))
    return parts


if __name__ == "__main__":
    StackPlan.build = build  # type: ignore[method-assign]
    main()
