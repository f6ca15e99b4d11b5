"""The job that a worker pulls from the work queue (appendix E)."""

from typing import Any

from pydantic import Field

from .messages import Message, is_missing
from .names import Tag
from .retry import RetryPolicy
from .trace_context import TraceContext


class Job(Message):
    run_id: str = Field(min_length=1, pattern=r"^[A-Za-z0-9_-]+$")
    flow_name: str = Field(min_length=1)
    tag: Tag
    tags: list[str] = []
    params: dict[str, Any] = {}
    submitted_at: float
    tenant_id: str | None = None
    api_key_id: str | None = None
    workflow_yaml: str | None = None
    workflow_yaml_sha256: str | None = None
    workflow_yaml_bytes: int | None = None
    # The run's rules that the worker must know; readers of the seed spec ignore them.
    retry: RetryPolicy | None = None
    not_before: float | None = None
    deadline_at: float | None = None
    rerun_of: str | None = None
    idempotency_key: str | None = None
    # The id of the request that submitted the run, for the logs of later processing.
    request_id: str | None = Field(None, exclude_if=is_missing)
    # The trace context of the request that submitted the run, if traced; dispatch and execution continue it.
    traceparent: str | None = Field(None, exclude_if=is_missing)
    tracestate: str | None = Field(None, exclude_if=is_missing)

    @property
    def trace_context(self) -> TraceContext | None:
        return TraceContext.parse(self.traceparent, self.tracestate)
