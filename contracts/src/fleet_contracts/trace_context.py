"""The W3C trace context, propagated between processes in headers and in jobs."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

# Headers over HTTP and on NATS alike.
TRACEPARENT = "traceparent"
TRACESTATE = "tracestate"

_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
# One line of printable text: it is passed on as a header again.
_TRACESTATE = re.compile(r"[\x20-\x7e]{1,512}")
_SAMPLED = 0x01


@dataclass(frozen=True, slots=True)
class TraceContext:
    """A reference to a span that another process can continue."""

    trace_id: str
    span_id: str
    is_sampled: bool = True
    # Vendor data, propagated unchanged.
    tracestate: str | None = None

    @classmethod
    def parse(cls, traceparent: str | None, tracestate: str | None = None) -> Self | None:
        """Parse the headers; None if they are missing or invalid, without an error: a new trace may begin."""
        if traceparent is None or (found := _TRACEPARENT.fullmatch(traceparent.strip())) is None:
            return None
        version, trace_id, span_id, flags, more = found.groups()
        # Later versions may append fields; those of version 00 come first.
        if version == "ff" or (version == "00" and more) or not trace_id.strip("0") or not span_id.strip("0"):
            return None
        if tracestate is not None and not _TRACESTATE.fullmatch(tracestate):
            tracestate = None
        return cls(trace_id, span_id, bool(int(flags, 16) & _SAMPLED), tracestate)

    @classmethod
    def of_headers(cls, headers: Mapping[str, str] | None) -> Self | None:
        """The trace context of the publisher of a message, from its headers."""
        return None if not headers else cls.parse(headers.get(TRACEPARENT), headers.get(TRACESTATE))

    @property
    def traceparent(self) -> str:
        return f"00-{self.trace_id}-{self.span_id}-{'01' if self.is_sampled else '00'}"

    @property
    def headers(self) -> dict[str, str]:
        headers = {TRACEPARENT: self.traceparent}
        if self.tracestate:
            headers[TRACESTATE] = self.tracestate
        return headers
