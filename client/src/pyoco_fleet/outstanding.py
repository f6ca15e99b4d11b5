"""Which of many runs have not ended yet, and which of them the next stream is about."""

import math
import time
from collections import deque
from collections.abc import Iterable

from .callers import Json
from .calls import Call
from .errors import WaitTimeout
from .routes import runs
from .sse import Event

# As many as one stream takes. When half of them have ended, the next stream makes room for more.
WINDOW = 1000
_STREAM_SECONDS = 600
# While there are more runs than one stream takes.
_TURN_SECONDS = 10
_PAUSE_SECONDS = 0.5
# For an answer to a caller that does not wait: of what has ended already.
_ANSWER_SECONDS = 5.0


class Outstanding:
    def __init__(self, run_ids: Iterable[str], timeout: float | None) -> None:
        self._waiting = deque(dict.fromkeys(run_ids))
        self._watched: dict[str, None] = {}
        self._timeout = timeout
        self._moved = True
        self.total = len(self._waiting)
        self.deadline = None if timeout is None else time.monotonic() + timeout
        does_not_wait = timeout is not None and timeout <= 0
        self.stream_deadline = time.monotonic() + _ANSWER_SECONDS if does_not_wait else self.deadline
        self._all_told = False

    def __len__(self) -> int:
        return len(self._waiting) + len(self._watched)

    def watch(self) -> Call[str]:
        """The request for the next stream. Where nothing ended in the one before, others have their turn."""
        if self._waiting and not self._moved:
            self._waiting.extend(self._watched)
            self._watched.clear()
        while self._waiting and len(self._watched) < WINDOW:
            self._watched[self._waiting.popleft()] = None
        self._moved = False
        longest = _TURN_SECONDS if self._waiting else _STREAM_SECONDS
        left = longest if self.deadline is None else self.deadline - time.monotonic()
        seconds = max(1, math.ceil(min(left, longest)))
        return runs.watch_runs(list(self._watched), results=True, timeout_sec=seconds)

    def ends(self, event: Event) -> list[Json]:
        """The runs that this event tells the end of, each once."""
        self._all_told = event.event == "ready"
        if event.event == "run" and event.data["ended"]:
            told = [event.data]
        elif event.event == "unknown":
            told = [{"run_id": run_id, "status": "UNKNOWN"} for run_id in event.data["run_ids"]]
        else:
            return []
        new = [end for end in told if end["run_id"] in self._watched]
        for end in new:
            del self._watched[end["run_id"]]
        self._moved = self._moved or bool(new)
        return new

    @property
    def wants_next_stream(self) -> bool:
        is_late = self._all_told and self.deadline is not None and time.monotonic() >= self.deadline
        return not self or is_late or bool(self._waiting and len(self._watched) <= WINDOW // 2)

    def pause_seconds(self) -> float:
        """Before the next stream. Raises WaitTimeout when there is no time left."""
        if not self:
            return 0.0
        if self.deadline is not None and time.monotonic() >= self.deadline:
            first = next(iter(self._watched), None) or self._waiting[0]
            which = f"the run {first} has" if self.total == 1 else f"{len(self)} of {self.total} runs have"
            raise WaitTimeout(f"{which} not ended within {self._timeout:g} s; it goes on", code="TIMEOUT")
        return 0.0 if self._moved else _PAUSE_SECONDS
