"""Declines jobs whose flow this worker does not offer: runs-api says who is to have them."""

import asyncio
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from nats.errors import NoRespondersError

from fleet_contracts.catalogue import Catalogue
from fleet_contracts.declined import Declined, DeclinedAnswer, DeclinedDecision
from fleet_contracts.job import Job
from fleet_contracts.messages import MalformedMessage
from fleet_kit.errors import NatsUnavailable
from fleet_kit.logs.rate_limit import RateLimitedLog
from fleet_kit.nats.link import NatsLink

from ..pool.pool import RunnerPool
from ..settings import WorkerSettings
from ..wheels.sync import SyncedWheels
from .delivery import Delivery
from .disposition import DeclinedJob, Outcome

logger = logging.getLogger(__name__)

# Shorter than the time after which a held run without a heartbeat counts as lost.
_ANSWER_SECONDS = 2.0
_SILENCE_SECONDS = 1.0
# When nobody has listened for so long, runs-api is of a version without catalogues, and jobs are claimed as they were
# then. An outage of runs-api must not end runs that another worker could execute.
_LONGEST_SILENCE_SECONDS = 3600.0
# They use no runner, but NATS has a limit on jobs that are in the hands of workers (200 for each tag).
_MOST_KEPT = 12
# How long a flow that a runner did not find counts as missing, although the catalogue may have it.
_MISSING_SECONDS = 5.0
_MOST_MISSING = 1000
_MOST_LOADING_LOOKS = 200
_LOADING_PAUSE_SECONDS = 0.05
_FIRST_PAUSE_SECONDS = 0.05
_LONGEST_PAUSE_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class FlowNowhere:
    """The run is claimed here all the same: no live worker offers its flow, or runs-api leaves it to the claim."""

    # The sentence that a run ends with whose flow nobody offers.
    error: str | None = None


class Declining:
    def __init__(
        self,
        link: NatsLink,
        settings: WorkerSettings,
        pool: RunnerPool,
        *,
        wheels: SyncedWheels | None = None,
        is_answered: Callable[[], bool] = lambda: False,
        loaded_at: Callable[[], float | None] = lambda: None,
    ) -> None:
        """`is_answered`: whether runs-api knows of catalogues. One of an earlier version, or a peer's, does not.

        `loaded_at`: when the flows of the present catalogue were loaded.
        """
        self._link = link
        self._settings = settings
        self._pool = pool
        self._wheels = wheels
        self._is_answered = is_answered
        self._loaded_at = loaded_at
        self._catalogue: Catalogue | None = None
        self._names: frozenset[str] = frozenset()
        self._names_loaded_at: float | None = None
        # Flows that a runner did not find: until when they count as missing (monotonic clock), and what it said.
        self._missing: dict[str, tuple[float, str]] = {}
        self._kept = 0
        self._silence = RateLimitedLog()
        # Since when nobody listens to requests, and the last one that nobody heard, by the monotonic clock.
        self._unheard: tuple[float, float] | None = None

    def offers(self, flow_name: str) -> bool:
        """Whether the flow may be here, according to the catalogue and to what runners have not found."""
        if self._pool.catalogue is not self._catalogue:
            self._catalogue = self._pool.catalogue
            self._names, self._names_loaded_at = frozenset(self._pool.flows), self._loaded_at()
            self._missing.clear()
        if flow_name not in self._names and not self._catalogue.is_open:
            return False
        return not self._missing or self.why_missing(flow_name) is None

    def why_missing(self, flow_name: str) -> str | None:
        """What a runner has said lately that did not find the flow."""
        until, error = self._missing.get(flow_name, (0.0, ""))
        return error if until > time.monotonic() else None

    def note_missing(self, flow_name: str, error: str) -> None:
        """A runner has not found the flow."""
        if len(self._missing) >= _MOST_MISSING:
            self._missing.clear()
        self._missing[flow_name] = (time.monotonic() + _MISSING_SECONDS, error)

    @property
    def has_room(self) -> bool:
        """Whether one more declined job may be kept until another worker takes it."""
        return self._kept < _MOST_KEPT

    @contextmanager
    def keeping(self) -> Iterator[None]:
        self._kept += 1
        try:
            yield
        finally:
            self._kept -= 1

    async def decline(self, job: Job, delivery: Delivery) -> DeclinedJob | FlowNowhere | None:
        """Decide about a job before it is claimed; None: it is executed here."""
        if job.workflow_yaml is not None or self.offers(job.flow_name) or not self._is_answered():
            return None
        verdict = await self.ask(job, delivery)
        return None if await self._may_come_by_wheel(job, verdict) else verdict

    async def decline_again(self, job: Job, delivery: Delivery) -> DeclinedJob | FlowNowhere:
        """Decide about a job that is kept; if its flow has come, it is given back: there may be no free runner."""
        verdict = await self.ask(job, delivery, is_kept=True)
        return DeclinedJob(0.0) if await self._may_come_by_wheel(job, verdict) else verdict

    async def _may_come_by_wheel(self, job: Job, verdict: DeclinedJob | FlowNowhere) -> bool:
        """Before a run ends for want of its flow, wait for wheels that may bring it: whether one has done so."""
        if self._wheels is None:
            return False
        if isinstance(verdict, DeclinedJob):
            if verdict.retry_seconds is not None:
                self._wheels.look_soon()
            return False
        if verdict.error is None:
            return False
        await self._wheels.catch_up(time.monotonic())
        await self._wait_for_catalogue()
        return self.offers(job.flow_name)

    async def _wait_for_catalogue(self) -> None:
        """Wait until a runner has loaded the wheels in force; not for ever, because perhaps none can be started."""
        for _ in range(_MOST_LOADING_LOOKS):
            if self._pool.is_catalogue_current:
                return
            await asyncio.sleep(_LOADING_PAUSE_SECONDS)

    async def ask(self, job: Job, delivery: Delivery, *, is_kept: bool = False) -> DeclinedJob | FlowNowhere:
        """Ask runs-api; if it does not answer, it is asked again later. `is_kept`: the job has its place here."""
        if not self._is_answered():
            return FlowNowhere()
        settings = self._settings
        known = ", ".join(sorted(self._names)) or "none"
        declined = Declined(
            run_id=job.run_id,
            flow_name=job.flow_name,
            tag=settings.tag_of_work_subject(delivery.subject),
            ack_subject=delivery.reply,
            num_delivered=delivery.num_delivered,
            reason=self.why_missing(job.flow_name)
            or f"flow {job.flow_name!r} is not known to this worker; known flows: {known}",
            has_room=is_kept or self.has_room,
            loaded_at=self._names_loaded_at,
        )
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                message = await self._link.request(settings.declined_subject(settings.worker_id), declined.encode())
            answer = DeclinedAnswer.decode(message.data)
        except (NatsUnavailable, TimeoutError, MalformedMessage) as error:
            problem = str(error) or type(error).__name__
            level = self._silence.level("silence")
            logger.log(level, "runs-api has not said what becomes of a job of a flow that is not here: %s", problem)
            return FlowNowhere() if self._is_unheard(error) else DeclinedJob(_SILENCE_SECONDS)
        self._unheard = None
        match answer.decision:
            case DeclinedDecision.HANDED_OVER:
                return DeclinedJob(None)
            case DeclinedDecision.LATER:
                return DeclinedJob(max(answer.retry_seconds, 0.0))
            case DeclinedDecision.NOT_FOUND:
                return FlowNowhere(answer.error)

    async def want(self, offer: Declined) -> None:
        """Say that there is room now for a job that was offered. If that gets lost, the job is offered again."""
        try:
            await self._link.send(self._settings.declined_subject(self._settings.worker_id), offer.encode())
        except NatsUnavailable as error:
            logger.debug("the offer of a job could not be accepted: %s", error)

    def _is_unheard(self, error: Exception) -> bool:
        """Whether nobody has listened for a long time; an outage of NATS, or a late answer, starts the time again."""
        if not isinstance(error.__cause__, NoRespondersError):
            self._unheard = None
            return False
        now = time.monotonic()
        since, last = self._unheard or (now, now)
        if now - last > _LONGEST_SILENCE_SECONDS / 2:
            since = now  # nothing was asked meanwhile
        self._unheard = since, now
        return now - since >= _LONGEST_SILENCE_SECONDS


class DecliningPace:
    """Slows down pulling while every job that is taken has to be given back: the worker keeps enough declined ones.

    Meanwhile the jobs stay in the queue, where a worker that offers their flow takes them as soon as it can.
    """

    def __init__(self) -> None:
        self._pause_seconds = 0.0
        self._resume_at = float("-inf")

    def note(self, outcome: Outcome, *, now: float) -> None:
        if not isinstance(outcome, DeclinedJob) or outcome.retry_seconds is None:
            self._pause_seconds = 0.0
        elif now >= self._resume_at:
            self._pause_seconds = min(max(2 * self._pause_seconds, _FIRST_PAUSE_SECONDS), _LONGEST_PAUSE_SECONDS)
            self._resume_at = now + self._pause_seconds

    def seconds_left(self, *, now: float) -> float:
        return max(self._resume_at - now, 0.0) if self._pause_seconds else 0.0
