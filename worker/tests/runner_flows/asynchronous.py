"""Flows of `async def` tasks."""

import asyncio
import os
import threading
import time

from pyoco import Flow, task


def span():
    began = time.monotonic()
    return lambda: [began, time.monotonic()]


@task
async def left():
    ended = span()
    print("left", end="")
    await asyncio.sleep(0.3)
    print(" done")
    return ended()


@task
async def right():
    ended = span()
    print("right", end="")
    await asyncio.create_task(asyncio.sleep(0.2))
    await asyncio.create_task(say(" in a task"))
    await asyncio.to_thread(print, " in a thread")
    return ended()


async def say(text):
    print(text, end="")


async def _greet(text):
    return text.upper()


@task
def plain():
    ended = span()
    print("plain")
    time.sleep(0.3)
    return ended()


beside = Flow("beside") >> [left, right, plain]


@task
async def fetch(name="you"):
    await asyncio.sleep(0)
    return f"fetched {name}"


@task
def call(fetch):
    """A plain function, as decorators make them of `async def`."""
    return _greet(fetch)


chain = Flow("chain") >> fetch >> call


@task
async def repeated():
    await asyncio.sleep(0)
    return "again"


in_loop = Flow("in_loop") >> repeated[3]


@task
async def wait_long(stubborn=False, then=None):
    print("waiting")
    while True:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            print("cancelled")
            if then:
                raise ValueError(then) from None
            if not stubborn:
                raise


wait_long.task.retries = 5


@task
def after():
    pass


waiting = Flow("waiting") >> wait_long >> after


@task
async def too_slow():
    try:
        await asyncio.sleep(60)
    finally:
        print("ended")


too_slow.task.timeout_sec = 0.2
too_slow.task.retries = 2
slow = Flow("slow") >> too_slow


@task
async def fail(how="error"):
    if how == "exit":
        raise SystemExit(3)
    if how == "cancelled":
        raise asyncio.CancelledError
    raise TimeoutError("my own")


failing = Flow("failing") >> fail


left_behind = []


@task
async def leave_behind(stuck=False):
    async def go_on():
        try:
            await asyncio.sleep(60)
        finally:
            print("left behind")
            while stuck:
                time.sleep(1)  # noqa: ASYNC251 - it blocks the loop, as bad code does

    left_behind.append(asyncio.create_task(go_on()))
    await asyncio.sleep(0)
    return [os.getpid(), threading.get_ident()]


leaving = Flow("leaving") >> leave_behind


@task
async def stream():
    yield 1


streaming = Flow("streaming") >> stream


@task
async def nest():
    return _greet("never awaited")


nested = Flow("nested") >> nest
