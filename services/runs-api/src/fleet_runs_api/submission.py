"""Submitting a run: accepted in the ledger first, sent to JetStream second, answered third."""

import logging
import time
import uuid
from collections.abc import Callable

import orjson

from fleet_contracts.job import Job
from fleet_contracts.problems import Problem
from fleet_contracts.snapshot import RunSnapshot
from fleet_kit.errors import NatsUnavailable
from fleet_kit.identity import Identity
from fleet_kit.logging import problem_fields
from fleet_kit.nats import NatsLink, NatsSilent

from . import ledger
from .errors import LedgerUnavailable, SubmissionTooLarge
from .group_commit import GroupCommit
from .ledger import NewRun, Withdrawal
from .relay import Relay
from .schemas import SubmitRun
from .settings import RunsSettings

logger = logging.getLogger(__name__)

# Headers, the fields a claim adds: what a message needs besides the snapshot itself.
_HEADROOM_BYTES = 4096


class Submission:
    def __init__(
        self,
        *,
        settings: RunsSettings,
        link: NatsLink,
        commits: GroupCommit,
        relay: Relay,
        clock: Callable[[], float] = time.time,
        new_id: Callable[[], str] = lambda: str(uuid.uuid4()),
    ) -> None:
        self._settings = settings
        self._link = link
        self._commits = commits
        self._relay = relay
        self._clock = clock
        self._new_id = new_id

    async def submit(self, wanted: SubmitRun, caller: Identity) -> Job:
        """Accept a run and send it on its way. When NATS is away nothing is left behind."""
        self._link.require()
        job = self._job(wanted, caller)
        payload = job.encode()
        snapshot = RunSnapshot.pending(job, now=job.submitted_at)
        self._refuse_if_too_large(len(payload))
        new = NewRun(
            job=job,
            job_text=payload.decode(),
            tags_text=orjson.dumps(job.tags).decode(),
            retry_at=job.submitted_at + self._settings.relay_retry_sec,
        )
        await self._commits.write(ledger.accept, new)
        try:
            sequence = await self._relay.send(job, payload, snapshot, dispatch=1)
        except NatsUnavailable as error:
            await self._withdraw(job, error)
        else:
            self._relay.sent(job.run_id, dispatch=1, job_sequence=sequence)
        return job

    def _job(self, wanted: SubmitRun, caller: Identity) -> Job:
        tag = wanted.tag or self._settings.default_tag
        return Job(
            run_id=self._new_id(),
            flow_name=wanted.flow_name,
            tag=tag,
            tags=wanted.tags if wanted.tags is not None else [tag],
            params=wanted.params,
            submitted_at=self._clock(),
            tenant_id=None if caller.is_anonymous else caller.tenant_id,
            api_key_id=caller.api_key_id,
        )

    def _refuse_if_too_large(self, job_bytes: int) -> None:
        most = min(self._settings.max_run_snapshot_bytes, self._link.max_payload) - _HEADROOM_BYTES
        if job_bytes > most:
            raise SubmissionTooLarge(
                f"the run's input has {job_bytes} bytes, at most {most} are allowed; "
                "keep big data elsewhere and pass a reference to it",
                limit_bytes=most,
            )

    async def _withdraw(self, job: Job, error: NatsUnavailable) -> None:
        """Take the run back and tell the caller, unless a worker has it already: then it was sent after all."""
        try:
            withdrawn = await self._commits.write(ledger.withdraw, Withdrawal(job.run_id, self._clock()))
        except LedgerUnavailable:
            logger.error(
                "could not withdraw run %s, which could not be sent either; the relay will send it later",
                job.run_id,
                exc_info=True,
                extra={"run_id": job.run_id, **problem_fields(Problem.ORPHAN_RUN)},
            )
            raise error from None
        if withdrawn:
            # A NATS that hangs would only keep the caller waiting longer: the outbox does it later.
            if not isinstance(error, NatsSilent):
                await self._relay.remove_traces(job.run_id)
            raise error
