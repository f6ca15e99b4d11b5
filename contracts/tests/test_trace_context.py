"""Trace contexts are read as the W3C says, and propagated."""

import pytest

from fleet_contracts.job import Job
from fleet_contracts.snapshot import RunSnapshot
from fleet_contracts.trace_context import TraceContext

TRACE = "0af7651916cd43dd8448eb211c80319c"
SPAN = "b7ad6b7169203331"


def test_what_is_read_is_written_again() -> None:
    context = TraceContext.parse(f"00-{TRACE}-{SPAN}-01", "vendor=opaque,other=1")
    assert context == TraceContext(TRACE, SPAN, is_sampled=True, tracestate="vendor=opaque,other=1")
    assert context.headers == {"traceparent": f"00-{TRACE}-{SPAN}-01", "tracestate": "vendor=opaque,other=1"}


@pytest.mark.parametrize(("flags", "is_sampled"), [("00", False), ("01", True), ("03", True), ("fe", False)])
def test_only_the_first_flag_says_whether_the_trace_is_sampled(flags: str, is_sampled: bool) -> None:
    context = TraceContext.parse(f"00-{TRACE}-{SPAN}-{flags}")
    assert context is not None
    assert context.is_sampled is is_sampled
    assert context.traceparent.endswith("-01" if is_sampled else "-00")


def test_a_later_version_may_say_more() -> None:
    assert TraceContext.parse(f"cc-{TRACE}-{SPAN}-01-what-the-future-brings") == TraceContext(TRACE, SPAN)


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        "hello",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-01-more",
        f"00-{TRACE}-{SPAN}",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE}-{SPAN}-01\r\nNats-Msg-Id: other",
    ],
)
def test_what_is_no_context_is_none(text: str | None) -> None:
    assert TraceContext.parse(text) is None


@pytest.mark.parametrize("state", ["a=b\r\nNats-Rollup: all", "", "x" * 513, "ü=1"])
def test_a_tracestate_that_is_no_line_of_text_is_left_out(state: str) -> None:
    context = TraceContext.parse(f"00-{TRACE}-{SPAN}-01", state)
    assert context is not None
    assert context.tracestate is None


def test_a_traced_job_gives_its_snapshot_the_trace_id_and_an_untraced_one_none() -> None:
    job = Job(run_id="r1", flow_name="hello", tag="default", submitted_at=1.0)
    assert b"trace" not in job.encode()
    assert b"trace" not in RunSnapshot.pending(job, now=1.0).encode()
    traced = job.model_copy(update={"traceparent": f"00-{TRACE}-{SPAN}-00"})
    assert RunSnapshot.pending(traced, now=1.0).trace_id == TRACE


def test_a_job_with_a_context_of_another_kind_is_a_job_all_the_same() -> None:
    job = Job.decode(b'{"run_id":"r1","flow_name":"f","tag":"t","submitted_at":1,"traceparent":"b3-or-so"}')
    assert job.trace_context is None
    assert RunSnapshot.pending(job, now=1.0).trace_id is None
