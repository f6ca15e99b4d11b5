"""Builds the job of a worker from a caller's request: fills in defaults and makes times absolute."""

import hashlib
import json
from typing import Any

from pydantic_core import to_json

from fleet_contracts.job import Job
from fleet_kit.http.identity import Identity
from fleet_kit.ids import new_id
from fleet_kit.logs.setup import current_request_id
from fleet_kit.telemetry.tracing import current

from ..errors import InvalidTimes, SubmissionTooLarge
from ..settings import RunsSettings
from .requests import SubmitRun
from .terms import Terms
from .workflow import Workflow

# Room that a message needs beside the snapshot: for headers, and for the fields that a claim adds.
_HEADROOM_BYTES = 4096


def new_job(wanted: SubmitRun, terms: Terms, caller: Identity, settings: RunsSettings, *, now: float) -> Job:
    not_before = now + wanted.delay_sec if wanted.delay_sec is not None else wanted.not_before
    deadline_at, timeout_sec = wanted.deadline_at, wanted.timeout_sec
    if deadline_at is None and timeout_sec is None:
        timeout_sec = terms.timeout_sec
    if timeout_sec is not None:
        deadline_at = max(now, not_before or now) + timeout_sec
    if deadline_at is not None and deadline_at <= max(now, not_before or now):
        raise InvalidTimes("the run's deadline lies before it could begin; give a later deadline_at")
    return Job(
        run_id=new_id(),
        flow_name=wanted.flow_name,
        tag=terms.tag,
        tags=wanted.tags if wanted.tags is not None else [terms.tag],
        params=wanted.params,
        submitted_at=now,
        tenant_id=None if caller.is_anonymous else caller.tenant_id,
        api_key_id=caller.api_key_id,
        retry=wanted.retry or terms.retry or settings.retry_defaults.get(terms.tag),
        not_before=not_before if not_before is not None and not_before > now else None,
        deadline_at=deadline_at,
        **_trace(),
        request_id=current_request_id(),
    )


def with_workflow(job: Job, workflow: Workflow) -> Job:
    """The params of a workflow are its own defaults."""
    return job.model_copy(
        update={
            "params": workflow.defaults,
            "workflow_yaml": workflow.text,
            "workflow_yaml_sha256": workflow.sha256,
            "workflow_yaml_bytes": workflow.size_bytes,
        }
    )


def job_again(job: Job, caller: Identity, *, now: float) -> Job:
    """The same input as a new run of its own; the times of the first one are past."""
    return job.model_copy(
        update={
            "run_id": new_id(),
            "submitted_at": now,
            "api_key_id": caller.api_key_id,
            "not_before": None,
            "deadline_at": now + (job.deadline_at - (job.not_before or job.submitted_at))
            if job.deadline_at
            else None,
            "rerun_of": job.run_id,
            "idempotency_key": None,
            **_trace(),
            "request_id": current_request_id(),
        }
    )


def require_room(job: Job, job_bytes: int, *, snapshot_bytes: int, message_bytes: int) -> None:
    """SubmissionTooLarge if the job does not fit into a message, or its input into a snapshot."""
    # The workflow's text has a limit of its own and never goes into the snapshot.
    input_bytes = job_bytes - (len(to_json(job.workflow_yaml)) if job.workflow_yaml is not None else 0)
    most = min(snapshot_bytes, message_bytes) - _HEADROOM_BYTES
    if input_bytes > most or job_bytes > message_bytes - _HEADROOM_BYTES:
        raise SubmissionTooLarge(
            f"the run's input has {input_bytes} bytes, at most {most} are allowed; "
            "keep big data elsewhere and pass a reference to it",
            limit_bytes=most,
        )


def _trace() -> dict[str, str | None]:
    """The trace context of this request. All later work on the run is recorded in the same trace."""
    trace = current()
    if trace is None:
        return {"traceparent": None, "tracestate": None}
    return {"traceparent": trace.traceparent, "tracestate": trace.tracestate}


def asked_of(wanted: SubmitRun) -> dict[str, Any]:
    """What a submit asks for; repeated without the check of its params, it asks for the same."""
    return wanted.model_dump(mode="json", exclude={"check_params"})


def fingerprint(*asked: Any) -> str:
    """The same for the same request, whatever the order of its keys. Whole numbers may have any size."""
    return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()
