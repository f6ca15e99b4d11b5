"""Threads carry the task that has started them, however their code starts them."""

import contextvars
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from fleet_worker.runner.recording.threads import carry_into_threads

task = contextvars.ContextVar("task", default="none")


@pytest.fixture(autouse=True)
def carried(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    # So that both are put back.
    monkeypatch.setattr(threading.Thread, "start", threading.Thread.start)
    monkeypatch.setattr(ThreadPoolExecutor, "submit", ThreadPoolExecutor.submit)
    carry_into_threads(task)
    token = task.set("mine")
    yield
    task.reset(token)


def run_in(thread: threading.Thread) -> None:
    thread.start()
    thread.join(10)


def test_a_thread_that_could_not_be_started_can_be_started_later(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    thread = threading.Thread(target=lambda: said.append(task.get()))

    def refuse(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    name = "_start_new_thread" if hasattr(threading, "_start_new_thread") else "_start_joinable_thread"
    with monkeypatch.context() as full:
        full.setattr(threading, name, lambda *_, **__: refuse())
        with pytest.raises(RuntimeError, match="can't start new thread"):
            thread.start()
    run_in(thread)
    assert said == ["mine"]


def test_a_thread_keeps_a_run_of_its_own() -> None:
    said: list[str] = []
    thread = threading.Thread()
    own: Callable[[], None] = lambda: said.append(task.get())  # noqa: E731
    thread.run = own  # type: ignore[method-assign]
    run_in(thread)
    assert said == ["mine"]
    assert thread.run is own
    later = threading.Thread(target=print)
    run_in(later)
    assert "run" not in vars(later)


def test_a_class_of_threads_that_lets_nobody_set_its_run_can_be_started() -> None:
    said: list[str] = []

    class Sealed(threading.Thread):
        @property
        def run(self) -> Callable[[], None]:  # type: ignore[override]
            return lambda: said.append("ran")

    run_in(Sealed())
    assert said == ["ran"]


def test_the_work_of_a_pool_leaves_nothing_in_its_thread() -> None:
    with ThreadPoolExecutor(1, initializer=lambda: None) as pool:
        assert pool.submit(task.get).result() == "mine"
        task.set("next")
        with pytest.raises(ZeroDivisionError):
            pool.submit(lambda: 1 / 0).result()
        assert pool.submit(task.get).result() == "next"
