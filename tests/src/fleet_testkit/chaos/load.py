"""Clients that keep submitting runs while a test injects a failure, and record every answer."""

import statistics
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import httpx

_PAUSE_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class Answer:
    asked_at: float
    seconds: float
    # None: the connection broke, so the outcome is unknown.
    status: int | None
    run_id: str | None
    # The run's param `label`.
    label: str
    body: str


@dataclass(slots=True)
class Figures:
    accepted: int
    refused: int
    unclear: int
    p50_ms: float
    p99_ms: float
    longest_gap_seconds: float
    more: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        more = "".join(f", {what} {value}" for what, value in self.more.items())
        return (
            f"accepted {self.accepted}, refused {self.refused}, unclear {self.unclear}, "
            f"submit p50 {self.p50_ms:.0f} ms p99 {self.p99_ms:.0f} ms, "
            f"longest time without an accepted one {self.longest_gap_seconds:.1f} s{more}"
        )


class Load:
    """`with Load(url, "hello", {}, label="name") as load: break_something()`

    Every client submits five times a second at most, each run with a label of its own in the param `label`.
    """

    def __init__(
        self, url: str, flow_name: str, params: dict[str, Any], *, clients: int = 3, label: str = "label"
    ) -> None:
        self._url = url
        self._flow_name = flow_name
        self._params = params
        self._label = label
        self._stop = threading.Event()
        self._pool = ThreadPoolExecutor(max_workers=clients)
        self._numbers = range(clients)
        self._clients: list[Future[None]] = []
        self._lock = threading.Lock()
        self.answers: list[Answer] = []
        self._begun = self._ended = 0.0

    def __enter__(self) -> "Load":
        self._begun = time.monotonic()
        self._clients = [self._pool.submit(self._submit, number) for number in self._numbers]
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop the clients. Raises the error of a client that an unexpected answer has ended early."""
        if not self._stop.is_set():
            self._stop.set()
            self._pool.shutdown()
            self._ended = time.monotonic()
            for client in self._clients:
                client.result()

    @property
    def accepted(self) -> list[Answer]:
        with self._lock:
            return [answer for answer in self.answers if answer.status == httpx.codes.OK]

    @property
    def refused(self) -> list[Answer]:
        """Submits answered with 503: nothing of them may be left."""
        with self._lock:
            return [answer for answer in self.answers if answer.status == httpx.codes.SERVICE_UNAVAILABLE]

    @property
    def unclear(self) -> list[Answer]:
        """Submits with any other answer or none: the client does not know whether the run exists."""
        clear = (httpx.codes.OK, httpx.codes.SERVICE_UNAVAILABLE)
        with self._lock:
            return [answer for answer in self.answers if answer.status not in clear]

    @property
    def run_ids(self) -> list[str]:
        return [answer.run_id for answer in self.accepted if answer.run_id is not None]

    def accepted_since(self, moment: float) -> int:
        return sum(answer.asked_at >= moment for answer in self.accepted)

    def figures(self, **more: str) -> Figures:
        accepted = sorted(self.accepted, key=lambda answer: answer.asked_at)
        waits = sorted(answer.seconds * 1000 for answer in accepted)
        moments = [self._begun, *(answer.asked_at + answer.seconds for answer in accepted), self._ended]
        gaps = [after - before for before, after in pairwise(sorted(moments))]
        return Figures(
            len(accepted),
            len(self.refused),
            len(self.unclear),
            statistics.median(waits) if waits else 0.0,
            waits[int(len(waits) * 0.99)] if waits else 0.0,
            max(gaps),
            more,
        )

    def _submit(self, number: int) -> None:
        with httpx.Client(base_url=self._url, timeout=30) as client:
            count = 0
            while not self._stop.is_set():
                count += 1
                answer = self._ask(client, f"{number}-{count}")
                with self._lock:
                    self.answers.append(answer)
                self._stop.wait(_PAUSE_SECONDS)

    def _ask(self, client: httpx.Client, label: str) -> Answer:
        asked_at = time.monotonic()
        body = {"flow_name": self._flow_name, "params": {**self._params, self._label: label}}
        try:
            answer = client.post("/runs", json=body)
        except httpx.TransportError as error:
            return Answer(asked_at, time.monotonic() - asked_at, None, None, label, repr(error))
        run_id = answer.json()["run_id"] if answer.status_code == httpx.codes.OK else None
        return Answer(asked_at, time.monotonic() - asked_at, answer.status_code, run_id, label, answer.text)
