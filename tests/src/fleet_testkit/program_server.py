"""A fork server: forks our programs from a process that has imported them; `programs.py` is its only client.

Importing is most of what a short program costs (0.5 to 1.4 s of CPU time), and the tests start hundreds of them.
"""

import atexit
import gc
import importlib
import json
import os
import runpy
import selectors
import signal
import socket
import sys
import threading
import traceback
from typing import Any, NoReturn

PRELOADED = (
    "fleet_auth.admin.cli",
    "fleet_auth.admin.container_secrets",
    "fleet_auth.main",
    "fleet_launcher.cli",
    "fleet_runs_api.main",
    "fleet_runs_api.ledger.migrate",
    "fleet_wheels_api.main",
    "fleet_worker.cli",
    "fleet_workers_api.main",
    "pyoco_fleet.cli.main",
    "pyoco_fleet.http_client",
)
_MOST_BYTES = 1 << 20


def serve(requests: socket.socket) -> None:
    """Fork requested programs and report their exit codes, until the client closes its socket."""
    # By pid: the descriptor to which the exit code of the child is written.
    waiting: dict[int, int] = {}
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_read, False)
    os.set_blocking(wake_write, False)
    signal.set_wakeup_fd(wake_write)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    with selectors.DefaultSelector() as selector:
        selector.register(requests, selectors.EVENT_READ)
        selector.register(wake_read, selectors.EVENT_READ)
        while True:
            ready = {key.fileobj for key, _ in selector.select()}
            if wake_read in ready:
                os.read(wake_read, 4096)
                _reap(waiting)
            if requests in ready:
                data, descriptors, _, _ = socket.recv_fds(requests, _MOST_BYTES, 3)
                if not data:
                    return
                stdout, stderr, end = descriptors
                pid = os.fork()
                if pid == 0:
                    requests.close()
                    _become(json.loads(data), stdout, stderr)
                waiting[pid] = end
                os.close(stdout)
                os.close(stderr)
                requests.sendall(f"{pid}\n".encode())


def _reap(waiting: dict[int, int]) -> None:
    while waiting:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        end = waiting.pop(pid)
        os.write(end, f"{os.waitstatus_to_exitcode(status)}\n".encode())
        os.close(end)


def _become(wanted: dict[str, Any], stdout: int, stderr: int) -> NoReturn:
    """Turn the forked child into the requested program, as if it had just been started."""
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGCHLD, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(stdout, 1)
    os.dup2(stderr, 2)
    os.closerange(3, 1024)
    os.chdir(wanted["folder"])
    os.environ.clear()
    os.environ.update(wanted["env"])
    entry, *arguments = wanted["command"]
    sys.argv = [entry, *arguments]
    code = 0
    try:
        if entry.endswith(".py"):
            runpy.run_path(entry, run_name="__main__")
        else:
            module, _, function = entry.partition(":")
            getattr(importlib.import_module(module), function)()
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
    except BaseException:  # noqa: BLE001 - as an interpreter does
        traceback.print_exc()
        code = 1
    # An interpreter's shutdown without the teardown of all imported modules, which takes most of the time.
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    for name in PRELOADED:
        importlib.import_module(name)
    # Exempt what is imported from garbage collection, which would copy its pages in every child.
    gc.freeze()
    serve(socket.socket(fileno=int(sys.argv[1])))
