"""Flows that the worker's tests execute."""

import ctypes
import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping

from pyoco import Flow, task


@task
def first(name="you"):
    print(f"first for {name}")
    return name


@task
def second(first):
    return f"hello {first}"


tiny = Flow("tiny") >> first >> second


@task
def left():
    started_at = time.time()
    time.sleep(0.4)
    return [started_at, time.time()]


@task
def right():
    started_at = time.time()
    time.sleep(0.4)
    return [started_at, time.time()]


parallel = Flow("parallel") >> [left, right]


@task
def chatter(who, lines=20):
    for number in range(lines):
        print(f"{who} {number}")
        sys.stderr.write(f"{who} {number} aside\n")
        time.sleep(0.02)


talking = Flow("talking") >> chatter


@task
def wait_for_file(ctx, file=None, seconds=60.0):
    """Print at once, then wait until a file exists (or a cancel is seen)."""
    print("waiting")
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if (file and os.path.exists(file)) or ctx.is_cancelled:
            break
        time.sleep(0.01)
    return os.getpid()


waiting = Flow("waiting") >> wait_for_file


@task
def compute_elsewhere(file):
    """Keep a processor busy with a process of its own until a file exists."""
    code = "import os, sys\nwhile not os.path.exists(sys.argv[1]): sum(range(100_000))"
    subprocess.run([sys.executable, "-c", code, file], check=True)


computing = Flow("computing") >> compute_elsewhere


@task
def deaf(file=None):
    """Wait without ever looking for a cancel."""
    while not (file and os.path.exists(file)):
        time.sleep(0.01)


stubborn = Flow("stubborn") >> deaf


@task
def hold_the_interpreter(seconds):
    """Sleep in native code without letting other threads of this process run."""
    ctypes.PyDLL(None).usleep(int(seconds * 1e6))
    return seconds


greedy = Flow("greedy") >> hold_the_interpreter


@task
def raise_an_error(message="boom"):
    raise ValueError(message)


broken = Flow("broken") >> first >> raise_an_error


@task
def give_up():
    raise ValueError("not needed")


give_up.task.fail_policy = "isolate"
tolerant = Flow("tolerant") >> [first, give_up]


@task
def break_later(file):
    """Wait for a file without looking for a cancel, then fail."""
    while not os.path.exists(file):
        time.sleep(0.01)
    raise ValueError("broken at last")


breaking = Flow("breaking") >> break_later


@task
def leave():
    sys.exit(3)


leaving = Flow("leaving") >> leave


@task
def die(file=None):
    """End the whole process, as a crash in native code would; with a file: only until it exists."""
    if file is None or not os.path.exists(file):
        os._exit(7)


crashing = Flow("crashing") >> die


@task
def return_odd_things():
    class Rude:
        def __repr__(self):
            raise RuntimeError("no repr for you")

    return {
        "lock": threading.Lock(),
        "rude": Rude(),
        ("a", 1): {1, 2},
        "large": 2**80,
        "text": "\udcff",
        "nan": float("nan"),
    }


odd = Flow("odd") >> return_odd_things


@task
def return_much():
    return "x" * 3_000_000


much = Flow("much") >> return_much


@task
def return_an_object():
    return threading.Lock()


opaque = Flow("opaque") >> return_an_object


@task
def look_around(ctx):
    with open("note.txt", "w") as note:
        note.write("here")
    os.write(1, b"raw words\n")
    sys.stdout.buffer.write("straße\n".encode())
    return os.getcwd()


looking = Flow("looking") >> look_around


@task
def save(ctx, caught=False):
    try:
        return ctx.save_artifact("report.txt", "numbers")
    except Exception:
        if not caught:
            raise


saving = Flow("saving") >> save


async def fetch():
    """A workflow file names it."""
    return "fetched"


@task
def start_processes(ctx, file, wait=False):
    """Leave processes behind: in the group of this one, in another session, without a parent, and both."""
    orphan = "sleep 300 >/dev/null 2>&1 & echo $!"
    pids = [
        subprocess.Popen(["sleep", "300"]).pid,
        subprocess.Popen(["sleep", "300"], start_new_session=True).pid,
        int(subprocess.check_output(["sh", "-c", orphan])),
        int(subprocess.check_output(["sh", "-c", orphan], start_new_session=True)),
    ]
    with open(f"{file}.new", "w") as new:
        new.write(" ".join(map(str, pids)))
    os.rename(f"{file}.new", file)
    while wait and not ctx.is_cancelled:
        time.sleep(0.01)
    return os.getpid()


fertile = Flow("fertile") >> start_processes


@task
def use_memory(megabytes, processes=0):
    """Here, or in so many processes each."""
    if not processes:
        return len(b"x" * (megabytes << 20))
    code = f"import time; x = b'x' * ({megabytes} << 20); time.sleep(300)"
    for child in [subprocess.Popen([sys.executable, "-c", code]) for _ in range(processes)]:
        child.wait()
    return 0


hungry = Flow("hungry") >> use_memory


class Unreadable(Mapping):
    def __getitem__(self, key):
        raise KeyError(key)

    def __len__(self):
        return 1

    def __iter__(self):
        raise ValueError("there was too much of it") from MemoryError()


@task
def return_much(megabytes=0):
    """Text and lists of so much in all, or a value that cannot be read."""
    if not megabytes:
        return Unreadable()
    return {"text": "é" * (megabytes << 19), "list": ["x" * 1000 for _ in range(megabytes << 9)]}


generous = Flow("generous") >> return_much


@task
def look_for_secrets(file=None, own_file=None):
    """What a flow could find out about the worker that executes it."""
    denied = []
    for path in (file, f"/proc/{os.getppid()}/environ"):
        try:
            open(path, "rb").close()
        except (PermissionError, TypeError):
            denied.append(path)
    if own_file:
        with open(own_file, "w") as own:
            own.write("mine")
    return {
        "environ": dict(os.environ),
        "argv": sys.argv,
        "uids": os.getresuid(),
        "gids": os.getresgid(),
        "groups": os.getgroups(),
        "denied": denied,
        "folder": os.getcwd(),
    }


curious = Flow("curious") >> look_for_secrets
