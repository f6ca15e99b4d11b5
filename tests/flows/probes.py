"""Flows whose effects a test can see from outside."""

import ctypes
import functools
import os
import threading
import time
from pathlib import Path

from pyoco import Flow, task


def _leave_mark(marks, label):
    """One line per execution; appending so little is atomic, also while others write."""
    descriptor = os.open(marks, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(descriptor, f"{label}\n".encode())
    os.close(descriptor)


@task
def mark(marks, label, seconds=0.0):
    _leave_mark(marks, label)
    time.sleep(seconds)
    return label


marked = Flow("marked") >> mark


@task
def mark_and_wait(marks, label, gate, deadline_seconds=120.0):
    """Until somebody opens the gate."""
    _leave_mark(marks, label)
    deadline = time.monotonic() + deadline_seconds
    while not Path(gate).exists():
        if time.monotonic() > deadline:
            raise TimeoutError("nobody opened the gate")
        time.sleep(0.02)


gated = Flow("gated") >> mark_and_wait


@task
def hold_gil(marks, label, seconds):
    _leave_mark(marks, label)
    # Unlike CDLL, PyDLL keeps the GIL during the call: no other thread of this process runs meanwhile.
    ctypes.PyDLL(None).sleep(int(seconds))
    return label


gil_bound = Flow("gil_bound") >> hold_gil


@task
def talk(folder, name, other, lines=50, deadline_seconds=20.0):
    """Wait until the other run is here as well, then talk at the same time as it does."""
    (Path(folder) / name).touch()
    deadline = time.monotonic() + deadline_seconds
    while not (Path(folder) / other).exists():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{other} did not come")
        time.sleep(0.01)
    for number in range(lines):
        print(f"{name} {number}")
        time.sleep(0.002)


talking = Flow("talking") >> talk


@task
def short_step(marks, label):
    _leave_mark(marks, label)
    time.sleep(0.05)


chain = Flow("chain") >> short_step[400]


def _numbered(number):
    def step():
        return None

    step.__name__ = f"step_{number}"
    return task(step)


# More task states than a small snapshot has room for.
crowd = functools.reduce(lambda flow, step: flow >> step, map(_numbered, range(100)), Flow("crowd"))


@task
def unspeakable():
    return {"lock": threading.Lock(), "half": "\udcff", "nothing": float("nan"), ("a", 1): 2**80}


@task
def bottomless():
    """JSON can hold it, but few readers go down that far."""
    return functools.reduce(lambda inside, _: [inside], range(230), "the end")


speechless = Flow("speechless") >> unspeakable >> bottomless


@task
def choke():
    raise ValueError("binary \0 output")


choking = Flow("choking") >> choke


@task
def follow_script(marks, script):
    """The n-th execution does what the n-th word says: "fail", "hang", or anything else to return it."""
    _leave_mark(marks, "execution")
    word = script[len(Path(marks).read_text().split()) - 1]
    if word == "fail":
        raise ValueError("as scripted")
    if word == "hang":
        time.sleep(600)
    return word


scripted = Flow("scripted") >> follow_script


@task
def fail_after(marks, label, seconds):
    _leave_mark(marks, label)
    time.sleep(seconds)
    raise ValueError("as wanted")


failing_late = Flow("failing_late") >> fail_after


@task
def say_everywhere(text):
    """In every way that output can leave a process, and at last by raising it."""
    print(text)
    os.write(1, f"{text}\n".encode())
    os.write(2, f"{text}\n".encode())
    os.system(f"echo {text}")
    try:
        raise KeyError(text)
    except KeyError as error:
        raise ValueError(f"no use: {text}") from error


indiscreet = Flow("indiscreet") >> say_everywhere


@task
def look_at_environments():
    """The environments of the runner and its worker, and of all others that can be read: as root every one."""
    of_worker = _environ_of(os.getppid()).split("\0")
    others = (_environ_of(int(entry.name)) for entry in Path("/proc").iterdir() if entry.name.isdigit())
    return {
        "runner": dict(os.environ),
        "worker": dict(line.split("=", 1) for line in of_worker if "=" in line),
        "has_pepper": os.geteuid() != 0 and any("PYOCO_AUTH_PEPPER=secret-" in other for other in others),
    }


def _environ_of(pid):
    try:
        return Path(f"/proc/{pid}/environ").read_text(errors="replace")
    except OSError:
        return ""


curious = Flow("curious") >> look_at_environments


@task
def sign(marks, label, seconds=0.0):
    """Says as which run it is executed, too: the working folder is named after the run and the attempt."""
    _leave_mark(marks, f"{label} {Path.cwd().name.rpartition('-')[0]}")
    time.sleep(seconds)


signed = Flow("signed") >> sign


@task
def pry(files):
    """Which of these files the flow can read, and as whom."""
    read = []
    for file in files:
        try:
            Path(file).read_bytes()
        except OSError:
            continue
        read.append(file)
    return {"uid": os.getuid(), "read": read}


prying = Flow("prying") >> pry
