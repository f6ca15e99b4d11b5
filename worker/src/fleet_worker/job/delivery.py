"""One delivery of a job, and the answers that JetStream understands."""

from dataclasses import dataclass
from typing import Self

from nats.aio.msg import Msg

from fleet_contracts.job import Job
from fleet_contracts.trace_context import TraceContext
from fleet_kit.nats.pull import ack_tokens

ACK = b"+ACK"
TERM = b"+TERM"
IN_PROGRESS = b"+WPI"


@dataclass(frozen=True, slots=True)
class Delivery:
    # The subject of the answer: ack, nak, term or work in progress.
    reply: str
    subject: str
    data: bytes
    # The job's sequence in the stream; redeliveries share it.
    sequence: int
    num_delivered: int
    # Jobs that were still pending in the queue after this one.
    num_pending: int
    # When the stream stored it, in unix seconds by the server's clock.
    stored_at: float = 0.0
    # The publisher's trace context, if it is traced.
    trace: TraceContext | None = None

    @classmethod
    def handed_over(cls, job: Job, *, subject: str, reply: str, num_delivered: int) -> Self:
        """A delivery that another worker got and has declined."""
        *_, sequence, _, stored_at, num_pending = [int(token) for token in ack_tokens(reply)[2:7]]
        trace = job.trace_context
        return cls(reply, subject, job.encode(), sequence, num_delivered, num_pending, stored_at / 1e9, trace)

    @classmethod
    def of(cls, msg: Msg) -> Self:
        known = msg.metadata
        return cls(
            msg.reply,
            msg.subject,
            msg.data,
            known.sequence.stream,
            known.num_delivered,
            known.num_pending,
            known.timestamp.timestamp(),
            TraceContext.of_headers(msg.headers),
        )
