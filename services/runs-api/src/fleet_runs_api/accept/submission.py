"""Submitting runs: accepted in the ledger first, sent to JetStream second, answered third."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial
from typing import TypeVar

from fleet_contracts import spans
from fleet_contracts.job import Job
from fleet_contracts.problems import Problem
from fleet_kit.errors import NatsUnavailable
from fleet_kit.http.bodies import beside_the_loop
from fleet_kit.http.identity import Identity
from fleet_kit.logs.events import service_call
from fleet_kit.logs.setup import failure_fields, problem_fields
from fleet_kit.nats.link import NatsSilent
from fleet_kit.telemetry.tracing import span

from ..dispatch.relay import Relay
from ..errors import (
    AcceptanceUnknown,
    IdempotencyConflict,
    InvalidParams,
    InvalidTimes,
    LedgerUnavailable,
    SubmissionTooLarge,
    SubmitUndecided,
)
from ..ledger import reads
from ..ledger.accepted import AcceptedRuns
from ..ledger.documents import NewRun
from ..ledger.sql.disk import LedgerDisk
from ..resources import Part, Resources
from . import acceptance
from .acceptance import Acceptance, Withdrawal
from .idempotency import Earlier, KeyUse
from .jobs import asked_of, fingerprint, job_again, new_job, require_room, with_workflow
from .requests import SubmitRun
from .terms import FlowTerms, Terms
from .workflow import Workflow

logger = logging.getLogger(__name__)

T = TypeVar("T")

_LOOK_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class Receipt:
    run_ids: Sequence[str]
    # The runs were accepted by an earlier request with the same key.
    replayed: bool = False

    @property
    def run_id(self) -> str:
        return self.run_ids[0]


class _EarlierState(Enum):
    """State of the run that was accepted earlier under the same key."""

    UNDECIDED = auto()
    DECIDED = auto()
    GONE = auto()


class Submission(Part):
    def __init__(
        self, shared: Resources, *, terms: FlowTerms, accepted: AcceptedRuns, relay: Relay, disk: LedgerDisk
    ) -> None:
        super().__init__(shared)
        self._terms = terms
        self._accepted = accepted
        self._relay = relay
        self._disk = disk

    async def submit(
        self,
        wanted: SubmitRun,
        caller: Identity,
        *,
        workflow: Workflow | None = None,
        idempotency_key: str | None = None,
        is_large: bool = False,
    ) -> Receipt:
        """Accept a run and send its job. If NATS is unavailable, the run is refused or withdrawn."""
        # At DEBUG, since there may be thousands: the gateway logs each request, and the ledger has the outcome.
        with service_call(logger, "runs", "submit", level=logging.DEBUG) as logged:
            self._link.require()
            self._disk.require()
            now = time.time()

            async def prepare(check: bool) -> tuple[NewRun, KeyUse | None]:
                terms = self._terms.of(wanted, check=check) if workflow is None else self._terms.of_workflow(wanted)
                work = partial(self._prepare_one, wanted, terms, caller, workflow, idempotency_key, now)
                # 1 MiB takes up to 150 ms.
                return await beside_the_loop(work) if is_large else work()

            new, use = await self._prepared(prepare, caller, idempotency_key)
            logged["entity_id"] = f"run:{new.job.run_id}"
            return await self._submit(new, use)

    async def rerun(self, job: Job, caller: Identity, *, idempotency_key: str | None = None) -> Receipt:
        """Submit the job of a run once more, as a new run."""
        again = job_again(job, caller, now=time.time())
        use = None
        if idempotency_key is not None:
            asked = fingerprint("rerun", job.run_id)
            use = KeyUse(caller.tenant_id, idempotency_key, asked, (again.run_id,), again.submitted_at)
            again = again.model_copy(update={"idempotency_key": idempotency_key})
        with service_call(logger, "runs", "rerun", entity_id=f"run:{again.run_id}"):
            self._link.require()
            self._disk.require()
            return await self._submit(self._prepare(again), use)

    async def submit_batch(
        self, wanted: Sequence[SubmitRun], caller: Identity, *, idempotency_key: str | None = None
    ) -> Receipt:
        """Accept all of them in one transaction. From then on the relay sends them, now or when NATS is back."""
        self._link.require()
        self._disk.require()
        now = time.time()

        async def prepare(check: bool) -> tuple[list[NewRun], KeyUse | None]:
            terms = [self._terms.of(one, check=check) for one in wanted]
            # A thousand runs take a tenth of a second, and others are answered meanwhile.
            return await beside_the_loop(self._prepare_many, wanted, terms, caller, idempotency_key, now)

        new, use = await self._prepared(prepare, caller, idempotency_key)
        run_ids = tuple(one.job.run_id for one in new)
        with service_call(logger, "runs", "submit_batch") as logged:
            logged["runs"] = len(run_ids)
            if (replay := await self._accept(new, use, send_at=now)) is not None:
                return replay
            self._relay.wake()
            return Receipt(run_ids)

    async def _prepared(self, prepare: Callable[[bool], Awaitable[T]], caller: Identity, key: str | None) -> T:
        try:
            return await prepare(True)
        except InvalidParams:
            # A submit that was accepted before under its key gets that answer, whatever the flow takes today.
            used = [] if key is None else await self._database.fetch(reads.is_key_used(caller.tenant_id, key))
            if not any(used):
                raise
            return await prepare(False)

    async def _submit(self, new: NewRun, use: KeyUse | None) -> Receipt:
        job = new.job
        # The relay sends the run at this time, if this process has not.
        send_at = job.submitted_at + self._settings.relay_retry_sec
        if (replay := await self._accept([new], use, send_at=send_at)) is not None:
            return replay
        if job.not_before is not None:
            await self._announce(new)
            return Receipt([job.run_id])
        try:
            sequence = await self._relay.send(new)
        except NatsUnavailable as error:
            await self._withdraw(job, use, error)
        else:
            if sequence is None:
                await self._relay.send_soon(job.run_id)
            else:
                self._relay.sent(job.run_id, sequence)
            self._accepted.note(job, size=len(new.payload))
        return Receipt([job.run_id])

    def _prepare_one(
        self,
        wanted: SubmitRun,
        terms: Terms,
        caller: Identity,
        workflow: Workflow | None,
        idempotency_key: str | None,
        now: float,
    ) -> tuple[NewRun, KeyUse | None]:
        job = new_job(wanted, terms, caller, self._settings, now=now)
        if workflow is not None:
            job = with_workflow(job, workflow)
        if idempotency_key is None:
            return self._prepare(job, terms), None
        new = self._prepare(job.model_copy(update={"idempotency_key": idempotency_key}), terms)
        # Computed after the size check, because it is much more expensive.
        asked = fingerprint(asked_of(wanted), workflow.sha256 if workflow else None)
        return new, KeyUse(caller.tenant_id, idempotency_key, asked, (job.run_id,), job.submitted_at)

    def _prepare_many(
        self,
        wanted: Sequence[SubmitRun],
        terms: Sequence[Terms],
        caller: Identity,
        idempotency_key: str | None,
        now: float,
    ) -> tuple[list[NewRun], KeyUse | None]:
        each = enumerate(zip(wanted, terms, strict=True))
        new = [self._prepare_one_of_many(index, one, its_terms, caller, now) for index, (one, its_terms) in each]
        if idempotency_key is None:
            return new, None
        asked = fingerprint([asked_of(one) for one in wanted])
        run_ids = tuple(one.job.run_id for one in new)
        return new, KeyUse(caller.tenant_id, idempotency_key, asked, run_ids, now)

    def _prepare_one_of_many(
        self, index: int, wanted: SubmitRun, terms: Terms, caller: Identity, now: float
    ) -> NewRun:
        try:
            return self._prepare(new_job(wanted, terms, caller, self._settings, now=now), terms)
        except (InvalidTimes, SubmissionTooLarge, InvalidParams) as error:
            place, meta = f"run {index} of the batch", {"index": index, **error.meta}
            if "fields" in meta:
                meta["fields"] = [{**fault, "field": f"runs.{index}.{fault['field']}"} for fault in meta["fields"]]
            raise type(error)(f"{place}: {error.message}", **meta) from error

    def _prepare(self, job: Job, terms: Terms | None = None) -> NewRun:
        new = NewRun.of(job)
        limits = self._settings.max_run_snapshot_bytes, self._link.client.max_payload
        require_room(job, len(new.payload), snapshot_bytes=limits[0], message_bytes=limits[1])
        if terms is not None:
            terms.require_fit(job.params, document=new.payload)
        return new

    async def _accept(self, new: Sequence[NewRun], use: KeyUse | None, *, send_at: float) -> Receipt | None:
        """Accept the runs; or, if their key was used before, the receipt of that time."""
        wanted = Acceptance(new, send_at, use)
        begun = time.perf_counter()
        with span(spans.RUN_ACCEPT, spans.about_run(new[0].job) if len(new) == 1 else {spans.RUN_COUNT: len(new)}):
            earlier = await self._write(wanted)
        self._metrics.accept_seconds.observe(time.perf_counter() - begun)
        if earlier is None or use is None:
            return None
        deadline = time.monotonic() + self._settings.nats_request_timeout_sec
        while (state := await self._state_of_earlier(earlier)) is not _EarlierState.DECIDED:
            if time.monotonic() > deadline:
                raise SubmitUndecided()
            if state is _EarlierState.UNDECIDED:
                await asyncio.sleep(_LOOK_SECONDS)
            before = earlier
            if (earlier := await self._write(wanted)) is None:
                return None  # the first request was withdrawn: this one takes its place
            if state is _EarlierState.GONE and earlier == before:
                break  # not withdrawn, or its key would be free: it ended long ago, and retention removed it
        if earlier.fingerprint != use.fingerprint:
            raise IdempotencyConflict(
                f"the idempotency key {use.key} was used for another request; use a new key for a new request",
                run_id=earlier.run_ids[0],
                run_ids=list(earlier.run_ids),
            )
        return Receipt(earlier.run_ids, replayed=True)

    async def _write(self, wanted: Acceptance) -> Earlier | None:
        try:
            return await self._commits.write(acceptance.accept, wanted)
        except LedgerUnavailable as error:
            if error.may_be_written:
                raise AcceptanceUnknown() from error
            raise

    async def _state_of_earlier(self, earlier: Earlier) -> "_EarlierState":
        """Whether the first request may still be withdrawn: its job was neither sent nor taken by the relay."""
        if len(earlier.run_ids) > 1:
            return _EarlierState.DECIDED  # a batch is never withdrawn
        for is_unsent in await self._database.fetch(reads.is_unsent(earlier.run_ids[0])):
            return _EarlierState.UNDECIDED if is_unsent else _EarlierState.DECIDED
        return _EarlierState.GONE

    async def _announce(self, new: NewRun) -> None:
        """Write the snapshot of a scheduled run to KV: now, or if NATS is unavailable, when the run is due."""
        try:
            await self._runs.announce(new.snapshot)
        except NatsUnavailable as error:
            logger.info("run %s will be announced when it is due: %s", new.job.run_id, error)
        self._relay.wake()

    async def _withdraw(self, job: Job, use: KeyUse | None, error: NatsUnavailable) -> None:
        """Withdraw the run and raise `error`. If the relay has taken the run to send it, the run stays accepted."""
        try:
            withdrawn = await self._commits.write(acceptance.withdraw, Withdrawal(job.run_id, time.time(), use))
        except LedgerUnavailable as away:
            logger.error(
                "could not withdraw run %s, which could not be sent either; unless it was withdrawn after all, "
                "the relay sends it later",
                job.run_id,
                extra={"run_id": job.run_id, **failure_fields(away), **problem_fields(Problem.ORPHAN_RUN)},
            )
            raise AcceptanceUnknown() from error
        if withdrawn:
            self._metrics.withdrawn.inc()
            # If NATS hangs, the caller would only wait longer. The relay removes the traces later.
            if not isinstance(error, NatsSilent):
                await self._relay.remove_traces(job.run_id)
            raise error
