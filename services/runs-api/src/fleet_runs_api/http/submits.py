"""HTTP routes that submit runs: one, a batch, or a rerun."""

from fastapi import Request
from fastapi.responses import Response

from fleet_contracts.scopes import Scope
from fleet_contracts.status import RunStatus
from fleet_kit.http.app import JsonResponse, new_router
from fleet_kit.http.bodies import LARGE_BYTES, read
from fleet_kit.http.identity import RunsWriter, identity_of
from fleet_kit.http.openapi import json_body

from ..accept.requests import SubmitBatch, SubmitRun, Submitted, SubmittedBatch
from ..accept.submission import Receipt
from .bodies import IDEMPOTENCY_KEY, NO_RUN, NOT_SUBMITTED, idempotency_key_of
from .dependencies import Service, service_of

router = new_router()

_REPLAYED = {"Idempotency-Replayed": "true"}


@router.post(
    "/runs",
    response_model=Submitted,
    responses=NOT_SUBMITTED,
    openapi_extra={**json_body(SubmitRun), **IDEMPOTENCY_KEY},
)
async def submit_run(request: Request, caller: RunsWriter, service: Service) -> Response:
    """Submit a run. It is on disk before the answer is sent."""
    wanted = await read(SubmitRun, request)
    receipt = await service.submission.submit(
        wanted,
        caller,
        idempotency_key=idempotency_key_of(request),
        is_large=len(await request.body()) > LARGE_BYTES,
    )
    service.metrics.submitted.inc(0 if receipt.replayed else 1)
    return answer_one(receipt)


async def submit_run_express(request: Request) -> Response:
    """`POST /runs` without the framework: see EXPRESS."""
    caller = await identity_of(request)
    caller.require(Scope.RUNS_WRITE)
    return await submit_run(request, caller, await service_of(request))


@router.post(
    "/runs/batch",
    response_model=SubmittedBatch,
    responses=NOT_SUBMITTED,
    openapi_extra={**json_body(SubmitBatch), **IDEMPOTENCY_KEY},
)
async def submit_batch(request: Request, caller: RunsWriter, service: Service) -> Response:
    """Submit up to 1,000 runs: all of them are accepted, or none."""
    wanted = await read(SubmitBatch, request)
    receipt = await service.submission.submit_batch(wanted.runs, caller, idempotency_key=idempotency_key_of(request))
    service.metrics.submitted.inc(0 if receipt.replayed else len(receipt.run_ids))
    runs = [_submitted(run_id) for run_id in receipt.run_ids]
    return JsonResponse({"runs": runs}, headers=_REPLAYED if receipt.replayed else None)


@router.post(
    "/runs/{run_id}/rerun",
    response_model=Submitted,
    responses={**NO_RUN, **NOT_SUBMITTED},
    openapi_extra=IDEMPOTENCY_KEY,
)
async def rerun(run_id: str, request: Request, caller: RunsWriter, service: Service) -> Response:
    """Submit the same input as a new run, which names the first one in `rerun_of`."""
    job = await service.views.job(run_id, tenant_id=caller.tenant_id)
    receipt = await service.submission.rerun(job, caller, idempotency_key=idempotency_key_of(request))
    service.metrics.submitted.inc(0 if receipt.replayed else 1)
    return answer_one(receipt)


def answer_one(receipt: Receipt) -> Response:
    return JsonResponse(_submitted(receipt.run_id), headers=_REPLAYED if receipt.replayed else None)


def _submitted(run_id: str) -> dict[str, str]:
    return {"run_id": run_id, "status": RunStatus.PENDING.value}


# Routes that bypass the framework: half of its work is not needed for a submit, and there are thousands of submits.
EXPRESS = {("POST", "/runs"): submit_run_express}
