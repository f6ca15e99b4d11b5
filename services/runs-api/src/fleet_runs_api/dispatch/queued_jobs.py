"""Finds, answers and removes the jobs of single runs in the work stream."""

import logging
import re

import orjson

from fleet_contracts.names import NATS_MSG_ID
from fleet_kit.errors import FleetError
from fleet_kit.nats.messages import stored_message
from fleet_kit.nats.outages import OUTAGES
from fleet_kit.nats.pull import ack_tokens

from ..ledger import reads
from ..ledger.rows import JobPlace
from ..resources import Part

logger = logging.getLogger(__name__)

# Both forms; the later one has two tokens more in front and one at the end.
_ACK_SUBJECT = re.compile(r"\$JS\.ACK(\.[A-Za-z0-9_-]+){2,4}(\.[0-9]+){5}(\.[A-Za-z0-9_-]+)?")


class QueuedJobs(Part):
    async def has(self, run_id: str, sequence: int | None) -> bool:
        """Whether the message at this sequence is the run's job; after a wipe of the stream it may be another one."""
        if not sequence:
            return False
        message = await stored_message(self._link, self._settings.work_stream, sequence, linearizable=True)
        if message is None:
            return False
        message_id = message.headers.get(NATS_MSG_ID, "")
        return message_id.startswith(f"{run_id}:") or _run_id_of(message.data) == run_id

    async def place_of(self, run_id: str) -> int | None:
        """The stream sequence of the latest job of a run; None if there is no job, or that is not known."""
        try:
            for place in await self._database.fetch(reads.job_place(run_id)):
                if await self.has(run_id, place.job_sequence):
                    return place.job_sequence
        except FleetError as error:
            logger.debug("the job of run %s stays where it is: %s", run_id, error)
        return None

    async def answer(self, run_id: str, ack_subject: str, answer: bytes) -> None:
        """Answer the delivery of this run's job on behalf of a holder that is lost.

        The subject comes from the snapshot, in which a worker may have written any subject: nothing is sent to one
        that is not the ack subject of this job.
        """
        places = await self._database.fetch(reads.job_place(run_id))
        if places and await self.is_delivery(run_id, ack_subject, places[0]):
            await self._link.send(ack_subject, answer)
        else:
            logger.warning(
                "run %s names no delivery of its job to be answered; nothing is sent",
                run_id,
                extra={"run_id": run_id},
            )

    async def is_delivery(self, run_id: str, subject: str, place: JobPlace) -> bool:
        """Whether this is the ack subject of a delivery of the run's job, as far as a worker cannot have invented it.

        If the ledger does not know the place of the job in the stream, the stored job itself is checked.
        """
        if _ACK_SUBJECT.fullmatch(subject) is None:
            return False
        stream, durable, _, found, *_ = ack_tokens(subject)
        if (stream, durable) != (self._settings.work_stream, self._settings.work_durable(place.tag)):
            return False
        if place.job_sequence is None:
            return await self.has(run_id, int(found))
        return int(found) == place.job_sequence

    async def remove_of_ended(self, run_id: str) -> None:
        """Remove the job of an ended run, so that it does not wait for a worker, which would only drop it."""
        if (sequence := await self.place_of(run_id)) is not None:
            await self.remove(sequence)

    async def remove(self, sequence: int) -> None:
        try:
            await self._link.jetstream.delete_msg(self._settings.work_stream, sequence)
        except OUTAGES:
            logger.debug("job %d could not be removed", sequence, exc_info=True)


def _run_id_of(data: bytes) -> str | None:
    """The run id in a job. Jobs of peers have no message id; other messages have no run id."""
    try:
        job = orjson.loads(data)
    except orjson.JSONDecodeError:
        return None
    return job.get("run_id") if isinstance(job, dict) else None


def is_same_job(subject: str | None, asked: str) -> bool:
    """Whether two ack subjects, the second one checked before, are of deliveries of one job."""
    return subject is not None and _job_of(subject) == _job_of(asked)


def _job_of(subject: str) -> list[str]:
    """Stream, consumer and the job's sequence in the stream."""
    tokens = ack_tokens(subject)
    return [*tokens[:2], *tokens[3:4]]
