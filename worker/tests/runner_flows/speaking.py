"""Flows that say something in every way there is."""

import ctypes
import logging
import os
import subprocess
import sys
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor

from pydantic import BaseModel, model_serializer
from pyoco import Flow, task

libc = ctypes.CDLL(None)
logger = logging.getLogger("shop")


@task
def say_it_all():
    print("printed")
    os.write(1, b"written\n")
    print("printed to stderr", file=sys.stderr)
    os.write(2, "geschrieben: ß\n".encode())
    subprocess.run(["sh", "-c", "echo from a child; echo from its stderr >&2"], check=True)
    print("the child has ended")
    libc.printf(b"in native code\n")
    logger.debug("not said")
    logger.info("for %s", "your information")
    logger.warning("beware")
    warnings.warn("this is old", stacklevel=1)
    try:
        raise ValueError("no")
    except ValueError:
        logger.exception("failed")
    threads = [threading.Thread(target=print, args=["in a thread"])]
    threads[0].start()
    threads[0].join()
    if (child := os.fork()) == 0:
        print("in a forked child")
        os._exit(0)
    os.waitpid(child, 0)
    libc.printf(b"no end of line")


@task
def then():
    print("then")


speaking = Flow("speaking") >> say_it_all >> then


def speak(name):
    for number in range(20):
        print(name, number)
        logger.info("%s logs %d", name, number)
        time.sleep(0.002)


@task
def ada():
    speak("ada")


@task
def bob():
    speak("bob")
    os.write(1, b"from nobody\n")
    time.sleep(0.1)


@task
def cid():
    time.sleep(0.3)


together = Flow("together") >> [ada, bob, cid]


@task
def flood(megabytes):
    """Here in native code that holds the interpreter, and in a process that outlives its task."""
    ctypes.PyDLL(None).write(1, b"x" * (megabytes << 20), megabytes << 20)
    subprocess.Popen(["sh", "-c", "trap '' TERM; while echo more; do :; done"])
    return "flooded"


flooding = Flow("flooding") >> flood


@task
def crash():
    """Print and abort in native code that holds the interpreter."""
    ctypes.PyDLL(None).__assert_fail(b"my last words", b"file.c", 1, b"crash")


crashing = Flow("crashing") >> crash


pool = ThreadPoolExecutor(1)
next_run_has_begun = threading.Event()
late_words_were_said = threading.Event()


def speak_late():
    next_run_has_begun.wait()
    print("late")
    logger.info("logged late")
    later = threading.Timer(0, print, ["later"])
    later.start()
    later.join()
    late_words_were_said.set()


@task
def leave_thread():
    threading.Thread(target=speak_late, daemon=True).start()
    pool.submit(print, "in the pool").result()


leaving = Flow("leaving_thread") >> leave_thread


@task
def follow():
    next_run_has_begun.set()
    assert late_words_were_said.wait(10)
    pool.submit(print, "in the same pool").result()


@task
def beside():
    late_words_were_said.wait(10)


following = Flow("following") >> [follow, beside]


# A logger with a handler of its own, as flows may have.
own_logger = logging.getLogger("own")
own_logger.addHandler(logging.StreamHandler(sys.stdout))
own_logger.propagate = False
item_is_read = threading.Event()
message_is_read = threading.Event()


class Message:
    def __str__(self):
        message_is_read.set()
        return "from a thread"


class Item(BaseModel):
    @model_serializer
    def read(self):
        if not item_is_read.is_set():
            item_is_read.set()
            message_is_read.wait(10)
            own_logger.warning("from the item")
        return {}


@task
def collect():
    threading.Thread(target=lambda: item_is_read.wait() and own_logger.warning(Message()), daemon=True).start()
    return [Item()]


@task
def read_item():
    pass


reading = Flow("reading") >> collect >> read_item["$ctx.results.collect as item"]
