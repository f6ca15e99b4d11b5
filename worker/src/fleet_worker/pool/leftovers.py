"""Ends what the flows of a worker have started when the worker itself is killed with SIGKILL.

Runners die with their agent, but then nobody is left who knows the processes of their runs. So a small process waits
for the agent's end and kills everything that carries the agent's mark. In a stack the launcher does so.

This file is also the script of that process, with few imports: usage: python -I -S leftovers.py DESCRIPTOR MARK
"""

import contextlib
import os
import secrets
import signal
import subprocess
import sys
import time

_VARIABLE = "PYOCO_FLEET_PART"
_ROUNDS = 100
_PAUSE_SECONDS = 0.02


def end_with_this_process() -> None:
    """Call it before the first runner is started, and before this process adopts orphans."""
    if sys.platform != "linux" or _VARIABLE in os.environ:
        return
    os.environ[_VARIABLE] = mark = f"pyoco-worker/{os.getpid()}-{secrets.token_hex(8)}"
    # Nobody writes into it, and this process keeps its end open for as long as it lives.
    until_the_end, _ = os.pipe()
    command = [sys.executable, "-I", "-S", __file__, str(until_the_end), mark]
    subprocess.run(  # noqa: S603 - our own script
        command,
        env={},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        pass_fds=[until_the_end],
        check=True,
    )
    os.close(until_the_end)


def _main() -> None:
    until_the_end, mark = int(sys.argv[1]), sys.argv[2]
    if os.fork():
        os._exit(0)  # the one that waits is not a child of the worker, which kills children that it does not know
    os.setsid()
    os.chdir("/")
    os.read(until_the_end, 1)
    # A process may have forked while it was looked for.
    for _ in range(_ROUNDS):
        if not _kill_marked(f"{_VARIABLE}={mark}".encode()):
            return
        time.sleep(_PAUSE_SECONDS)


def _kill_marked(entry: bytes) -> bool:
    found = False
    for name in filter(str.isdecimal, os.listdir("/proc")):
        # It may be gone, or be somebody else's.
        with contextlib.suppress(OSError):
            with open(f"/proc/{name}/environ", "rb") as file:
                is_marked = entry in file.read().split(b"\0")
            if is_marked:
                os.kill(int(name), signal.SIGKILL)
                found = True
    return found


if __name__ == "__main__":
    _main()
