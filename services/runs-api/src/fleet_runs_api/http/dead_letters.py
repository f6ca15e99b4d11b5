"""HTTP routes of dead letters: parse the request, call the use case, render the response. No logic here."""

import re
from typing import Annotated

from fastapi import Query, Request

from fleet_contracts.problems import Problem
from fleet_kit.http.app import answers_invalid_requests_with, new_router
from fleet_kit.http.bodies import read
from fleet_kit.http.identity import RunsReader, RunsWriter
from fleet_kit.http.openapi import json_body, refusals

from ..dead_letters.handling import LettersDeleted, LettersRequeued
from ..dead_letters.letter import LetterState
from ..dead_letters.reads import LetterFilter, LetterInFull
from ..errors import DeadLetterNotFound, LetterNotRequeued
from .dead_letter_schemas import (
    Criteria,
    DeletionQuery,
    GroupList,
    LetterDeleted,
    LetterList,
    LetterQuery,
    LetterRequeued,
    RequeueLetters,
    StateFilter,
)
from .dependencies import Service

router = new_router()

_NO_LETTER = refusals(DeadLetterNotFound)
_LETTER_ID = re.compile(r"[0-9]{1,18}")
_STATES = {
    "open": (LetterState.OPEN,),
    "requeued": (LetterState.REQUEUED,),
    "all": (LetterState.OPEN, LetterState.REQUEUED),
}


@router.get("/dlq", response_model=LetterList)
@answers_invalid_requests_with(Problem.INVALID_LIST_QUERY)
async def list_letters(caller: RunsReader, service: Service, query: Annotated[LetterQuery, Query()]) -> LetterList:
    """Dead letters, the newest first. A page may be short and yet not be the last: `next_cursor` decides."""
    wanted = _filter(query, caller.tenant_id, query.state)
    rows, next_cursor = await service.dead_letters.newest(wanted, limit=query.limit, cursor=query.cursor)
    return LetterList(
        items=list(rows),
        next_cursor=next_cursor,
        total_open=await service.dead_letters.total_open(caller.tenant_id),
    )


@router.delete("/dlq", response_model=LettersDeleted)
@answers_invalid_requests_with(Problem.INVALID_LIST_QUERY)
async def delete_letters(
    caller: RunsWriter, service: Service, query: Annotated[DeletionQuery, Query()]
) -> LettersDeleted:
    """Delete many letters; without any criterion `all` must be true."""
    wanted = _filter(query, caller.tenant_id, query.state)
    return await service.dead_letters.delete_all(wanted, caller, limit=query.limit, cursor=query.cursor)


@router.get("/dlq/groups", response_model=GroupList)
@answers_invalid_requests_with(Problem.INVALID_LIST_QUERY)
async def list_groups(
    caller: RunsReader, service: Service, limit: Annotated[int, Query(ge=1, le=200)] = 50
) -> GroupList:
    """Open letters by kind, the kind that was seen last first."""
    rows = await service.dead_letters.groups(caller.tenant_id, limit=limit)
    return GroupList(
        items=list(rows),
        total_open=await service.dead_letters.total_open(caller.tenant_id),
    )


@router.post("/dlq/requeue", response_model=LettersRequeued, openapi_extra=json_body(RequeueLetters))
async def requeue_letters(request: Request, caller: RunsWriter, service: Service) -> LettersRequeued:
    """New attempts for the runs of many letters, the oldest first, at a rate that the fleet can take."""
    body = await read(RequeueLetters, request)
    return await service.dead_letters.requeue_all(
        _filter(body.filter, caller.tenant_id, "open"),
        caller,
        rate_per_sec=body.rate_per_sec,
        limit=body.limit,
        start_at=body.start_at,
        cursor=body.cursor,
    )


@router.get("/dlq/{letter_id}", response_model=LetterInFull, responses=_NO_LETTER)
async def read_letter(letter_id: str, caller: RunsReader, service: Service) -> LetterInFull:
    """A letter, and the present state of its run."""
    return await service.dead_letters.find(_number(letter_id), tenant_id=caller.tenant_id)


@router.post(
    "/dlq/{letter_id}/requeue",
    response_model=LetterRequeued,
    responses=refusals(DeadLetterNotFound, LetterNotRequeued),
)
async def requeue_letter(letter_id: str, caller: RunsWriter, service: Service) -> LetterRequeued:
    """A new attempt for the run of this letter."""
    number = _number(letter_id)
    run, letters = await service.dead_letters.requeue(number, caller)
    return LetterRequeued(
        id=number, run_id=run.run_id, status=run.status, attempt=run.attempt, letters=sorted(letters)
    )


@router.delete("/dlq/{letter_id}", response_model=LetterDeleted, responses=_NO_LETTER)
async def delete_letter(letter_id: str, caller: RunsWriter, service: Service) -> LetterDeleted:
    """Delete one letter; its run stays as it is."""
    number = _number(letter_id)
    await service.dead_letters.delete(number, caller)
    return LetterDeleted(id=number, deleted=True)


def _filter(criteria: Criteria, tenant_id: str, state: StateFilter) -> LetterFilter:
    return LetterFilter(
        tenant_id=tenant_id,
        states=_STATES[state],
        reason=criteria.reason,
        flow_name=criteria.flow,
        tag=criteria.tag,
        run_id=criteria.run_id,
        fingerprint=criteria.fingerprint,
        since=criteria.since,
        until=criteria.until,
    )


def _number(letter_id: str) -> int:
    """The letter's id as a number; DeadLetterNotFound if it is not one."""
    if _LETTER_ID.fullmatch(letter_id) is None:
        raise DeadLetterNotFound(letter_id=letter_id)
    return int(letter_id)
