"""One delivery of a job, and the answers that JetStream understands."""

from dataclasses import dataclass
from typing import Self

from nats.aio.msg import Msg

from fleet_contracts.trace_context import TraceContext
from fleet_kit.nats.pull import ack_numbers_of, stored_at_of

ACK = b"+ACK"
TERM = b"+TERM"
IN_PROGRESS = b"+WPI"


@dataclass(frozen=True, slots=True)
class Delivery:
    # Where the answer goes.
    reply: str
    subject: str
    data: bytes
    # Which job of the stream this is; redeliveries share it.
    sequence: int
    num_delivered: int
    # How many more the queue had for us when it handed out this one.
    num_pending: int
    # When the queue took it, in unix seconds by its own clock.
    stored_at: float = 0.0
    # Who put it there, if that is traced.
    trace: TraceContext | None = None

    @classmethod
    def of(cls, msg: Msg) -> Self:
        numbers = ack_numbers_of(msg)
        return cls(
            msg.reply,
            msg.subject,
            msg.data,
            numbers.stream_sequence,
            numbers.delivered,
            numbers.pending,
            stored_at_of(msg),
            TraceContext.of_headers(msg.headers),
        )
