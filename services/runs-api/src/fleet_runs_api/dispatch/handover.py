"""Hands declined jobs over to other workers, on subjects that NATS lets only workers of the job's tag listen to."""

import asyncio
import time
from collections import deque
from dataclasses import dataclass, field

from nats.errors import NoRespondersError

from fleet_contracts.control import JOB_REFUSED, JOB_TAKEN, JOB_WANTED, Control, ControlKind
from fleet_contracts.declined import Declined
from fleet_contracts.job import Job
from fleet_kit.errors import NatsUnavailable
from fleet_kit.nats.client import NotPermitted

from ..resources import Part, Resources

# A worker answers at once what it can answer at once.
_ANSWER_SECONDS = 0.5
# How long workers are asked for one job; the worker that has declined it waits for the answer.
_ASKING_SECONDS = 1.0
# Until after the next request of the worker that has declined the job.
_OFFERED_SECONDS = 1.5
# A worker's record shows a run that it took this long ago at the latest.
_RECORD_SECONDS = 0.5
# How long a worker that did not answer comes after all others.
_SILENT_SECONDS = 10.0
_MOST_SILENT = 10_000


@dataclass(frozen=True, slots=True)
class DeclinedJob:
    asked: Declined
    # The worker that has declined it.
    by: str
    job: Job

    @property
    def delivery(self) -> tuple[str, str]:
        """Another worker that takes it over may decline the same delivery."""
        return self.by, self.asked.ack_subject


@dataclass(slots=True)
class Takeovers:
    """Which declined delivery of a run was taken over last. Several workers may have room for it; one gets it."""

    last: tuple[str, str] | None = None
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class HandOver(Part):
    """A worker writes the tags of its record itself, but it hears of jobs of the tags of its permissions only.

    It is first told that there is a job; the job itself is sent to a worker that has room for it.
    """

    def __init__(self, shared: Resources) -> None:
        super().__init__(shared)
        # When each worker was handed jobs that its record may not show yet.
        self._handed: dict[str, deque[float]] = {}
        # Until when workers count as silent, by their id and the tag; by the monotonic clock.
        self._silent: dict[tuple[str, str], float] = {}

    def is_silent(self, worker_id: str, tag: str) -> bool:
        """Whether the worker did not answer when it was last offered a job of the tag."""
        return self._silent.get((worker_id, tag), 0.0) > time.monotonic()

    def slots_taken(self, worker_id: str) -> int:
        """How many jobs the worker was handed that its record may not show yet."""
        handed = self._handed.get(worker_id)
        if handed is None:
            return 0
        while handed and handed[0] < time.monotonic() - _RECORD_SECONDS:
            handed.popleft()
        if not handed:
            del self._handed[worker_id]
            return 0
        return len(handed)

    async def offer(self, workers: list[str], declined: DeclinedJob, takeovers: Takeovers) -> bool:
        """Whether one of the workers has taken the job; one that is busy may want it later."""
        until = time.monotonic() + _ASKING_SECONDS
        for worker_id in workers:
            if time.monotonic() > until:
                break
            if await self._has_room(worker_id, declined.asked):
                await self.give(worker_id, declined, takeovers)
            if takeovers.last == declined.delivery:
                return True
        return False

    async def _has_room(self, worker_id: str, asked: Declined) -> bool:
        """Whether the worker has a free runner for the job, which it keeps for a moment."""
        update = {"reason": "it is offered", "loaded_at": None, "is_wanted": True}
        control = Control(
            kind=ControlKind.OFFER, offer=asked.model_copy(update=update), offered_seconds=_OFFERED_SECONDS
        )
        return await self._ask(worker_id, asked.tag, control) == JOB_WANTED

    async def give(self, worker_id: str, declined: DeclinedJob, takeovers: Takeovers) -> None:
        """Send the job to a worker that has room for it, unless another one was faster."""
        async with takeovers.lock:
            if takeovers.last != declined.delivery and await self._is_taken_by(worker_id, declined):
                takeovers.last = declined.delivery

    async def _is_taken_by(self, worker_id: str, declined: DeclinedJob) -> bool:
        asked = declined.asked
        self._handed.setdefault(worker_id, deque()).append(time.monotonic())
        control = Control(
            kind=ControlKind.JOB, job=declined.job, ack_subject=asked.ack_subject, num_delivered=asked.num_delivered
        )
        answer = await self._ask(worker_id, asked.tag, control)
        # Without an answer it may have the job. If not, the job is handed out again like any that nobody claims.
        return answer is None or answer == JOB_TAKEN

    async def _ask(self, worker_id: str, tag: str, control: Control) -> bytes | None:
        """The worker's answer; None if there was none in time."""
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                answer = await self._link.request(self._settings.handover_subject(worker_id, tag), control.encode())
        except TimeoutError:
            self._note_silence(worker_id, tag)
            return None
        except NatsUnavailable as error:
            if isinstance(error.__cause__, NoRespondersError | NotPermitted):
                self._note_silence(worker_id, tag)
            return JOB_REFUSED
        self._silent.pop((worker_id, tag), None)
        return answer.data

    def _note_silence(self, worker_id: str, tag: str) -> None:
        if len(self._silent) >= _MOST_SILENT:
            self._silent.clear()
        self._silent[worker_id, tag] = time.monotonic() + _SILENT_SECONDS
