"""Lets the threads that a task starts, and its work in a pool of threads, know which task they belong to."""

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import ContextVar
from typing import Any


def carry_into_threads(variable: ContextVar[Any]) -> None:
    """Give every new thread the value that the variable has where it is started. For the whole process, once.

    Python itself does so for coroutines and `asyncio.to_thread` only; a plain thread begins with an empty context.
    """
    start, submit = threading.Thread.start, ThreadPoolExecutor.submit

    def start_with_value(thread: threading.Thread) -> None:
        own = vars(thread)
        run, own_run, value = thread.run, own.get("run"), variable.get()

        def restore() -> None:
            if own_run is None:
                own.pop("run", None)
            else:
                own["run"] = own_run

        def run_with_value() -> None:
            restore()  # else the thread would refer to itself
            variable.set(value)
            run()

        # Not as an attribute, which a class may refuse. A class whose `run` is a property goes without the value.
        own["run"] = run_with_value
        try:
            start(thread)
        except BaseException:
            restore()  # there may be another try
            raise

    def submit_with_value(
        pool: ThreadPoolExecutor, work: Callable[..., Any], /, *args: Any, **named: Any
    ) -> Future[Any]:
        value = variable.get()

        def work_with_value(*args: Any, **named: Any) -> Any:
            # The pool's thread may have been started by another task.
            before = variable.set(value)
            try:
                return work(*args, **named)
            finally:
                variable.reset(before)

        return submit(pool, work_with_value, *args, **named)

    threading.Thread.start = start_with_value  # type: ignore[assignment,method-assign]
    ThreadPoolExecutor.submit = submit_with_value  # type: ignore[assignment,method-assign]
