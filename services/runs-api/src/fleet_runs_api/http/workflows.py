"""HTTP route that submits a workflow file: a form with the file, the flow's name and other fields of a submit."""

import asyncio
from collections.abc import AsyncGenerator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from pydantic import ValidationError
from pydantic_core import from_json
from starlette.datastructures import FormData, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser

from fleet_kit.http.app import new_router
from fleet_kit.http.bodies import FORM, require_content_type
from fleet_kit.http.identity import RunsWriter
from fleet_kit.http.openapi import form_body, refusals

from ..accept.requests import SubmitRun, Submitted
from ..accept.workflow import read_workflow
from ..errors import IdempotencyConflict, SubmissionTooLarge, WorkflowTooLarge
from .bodies import IDEMPOTENCY_KEY, idempotency_key_of
from .dependencies import Service
from .submits import answer_one

router = new_router()

# Room for the form around the file: boundaries, headers of its parts, the other fields.
_FORM_BYTES = 64 * 1024
_LONGEST_FIELD_BYTES = 16 * 1024
_MOST_FIELDS = 100
_FIELDS = ["workflow", *(name for name in SubmitRun.model_fields if name not in ("params", "check_params"))]
# One thread, so that checks run one at a time and off the event loop: the largest file takes a good part of a second.
_checker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="workflow-check")

_SUBMIT = SubmitRun.model_json_schema()["properties"]
_FORM = {
    "type": "object",
    "required": ["workflow", "flow_name"],
    "properties": {
        "workflow": {"type": "string", "format": "binary", "description": "the file"},
        "flow_name": {"type": "string", "description": "the run's flow name: the file has none"},
        "tag": {"type": "string", "description": "which workers may take the run"},
        "tags": {"type": "array", "items": {"type": "string"}, "description": "once for each label"},
        "retry": {"type": "string", "contentMediaType": "application/json", "description": "the object as JSON"},
        **{name: _SUBMIT[name] for name in ("not_before", "delay_sec", "deadline_at", "timeout_sec")},
    },
}


@router.post(
    "/runs/yaml",
    response_model=Submitted,
    responses=refusals(IdempotencyConflict, WorkflowTooLarge, SubmissionTooLarge),
    openapi_extra={**form_body(_FORM), **IDEMPOTENCY_KEY},
)
async def submit_workflow(request: Request, caller: RunsWriter, service: Service) -> Response:
    """Submit a run of a flow that comes with it, as a workflow file."""
    idempotency_key = idempotency_key_of(request)
    wanted, raw = await _read_form(request, service.workflow_yaml_max_bytes)
    workflow = await asyncio.get_running_loop().run_in_executor(_checker, read_workflow, raw)
    receipt = await service.submission.submit(wanted, caller, workflow=workflow, idempotency_key=idempotency_key)
    service.metrics.submitted.inc(0 if receipt.replayed else 1)
    return answer_one(receipt)


async def _read_form(request: Request, most_bytes: int) -> tuple[SubmitRun, bytes]:
    require_content_type(request, FORM)
    parser = MultiPartParser(
        request.headers,
        _limited(request, most_bytes),
        max_files=_MOST_FIELDS,
        max_fields=_MOST_FIELDS,
        max_part_size=_LONGEST_FIELD_BYTES,
    )
    try:
        form = await parser.parse()
    except MultiPartException as error:
        raise _bad_field("body", error.message) from error
    try:
        wanted = _read_fields(form)
        files = form.getlist("workflow")
        if len(files) != 1 or not isinstance(files[0], UploadFile):
            raise _bad_field("workflow", "send one file, such as curl -F workflow=@flow.yaml")
        raw = await files[0].read(most_bytes + 1)
    finally:
        await form.close()
    if len(raw) > most_bytes:
        raise _too_large(most_bytes)
    return wanted, raw


async def _limited(request: Request, most_bytes: int) -> AsyncGenerator[bytes, None]:
    """The chunks of the body; WorkflowTooLarge if it is larger than a form with the largest file can be."""
    left = most_bytes + _FORM_BYTES
    async for chunk in request.stream():
        left -= len(chunk)
        if left < 0:
            raise _too_large(most_bytes)
        yield chunk


def _read_fields(form: FormData) -> SubmitRun:
    given: dict[str, Any] = {}
    for name in form:
        values = form.getlist(name)
        if name not in _FIELDS:
            raise _bad_field(name, f"this field is not known; known fields: {', '.join(_FIELDS)}")
        if name == "workflow":
            continue
        if not all(isinstance(value, str) for value in values):
            raise _bad_field(name, "send it as a field, not as a file")
        if name == "tags":
            given[name] = values
        elif len(values) > 1:
            raise _bad_field(name, "send it once")
        elif text := str(values[0]).strip():  # an empty field counts as left out
            given[name] = _from_json(name, text) if name == "retry" else text
    try:
        return SubmitRun.model_validate(given)
    except ValidationError as error:
        raise RequestValidationError(error.errors(include_url=False, include_context=False)) from error


def _from_json(name: str, text: str) -> Any:
    try:
        return from_json(text, allow_inf_nan=False)
    except ValueError as error:
        raise _bad_field(name, f"not valid JSON: {error}") from error


def _bad_field(name: str, reason: str) -> RequestValidationError:
    return RequestValidationError([{"type": "form", "loc": (name[:100],), "msg": reason}])


def _too_large(most_bytes: int) -> WorkflowTooLarge:
    return WorkflowTooLarge(
        f"the workflow file has more than {most_bytes} bytes; make it smaller, "
        "or raise PYOCO_WORKFLOW_YAML_MAX_BYTES",
        limit_bytes=most_bytes,
    )
