"""Dead letters: runs that failed for good."""

from typing import Any

from ..calls import Call, as_json, given

Json = dict[str, Any]


def list_dead_letters(
    *, state: str | None = None, limit: int | None = None, cursor: str | None = None, **criteria: Any
) -> Call[Json]:
    """A page of dead letters. Criteria: reason, flow, tag, run_id, fingerprint, since, until."""
    return Call("GET", "/dlq", as_json, params=given(state=state, limit=limit, cursor=cursor, **criteria))


def list_dead_letter_groups(*, limit: int | None = None) -> Call[Json]:
    """Open dead letters by kind."""
    return Call("GET", "/dlq/groups", as_json, params=given(limit=limit))


def get_dead_letter(letter_id: int) -> Call[Json]:
    """A dead letter, and the present state of its run."""
    return Call("GET", "/dlq/{letter_id}", as_json, {"letter_id": letter_id})


def requeue_dead_letter(letter_id: int) -> Call[Json]:
    """A new attempt for the run of this letter."""
    return Call("POST", "/dlq/{letter_id}/requeue", as_json, {"letter_id": letter_id})


def requeue_dead_letters(
    *,
    all: bool = False,
    rate_per_sec: float | None = None,
    limit: int | None = None,
    start_at: Any = None,
    cursor: str | None = None,
    **criteria: Any,
) -> Call[Json]:
    """New attempts for the runs of many letters, the oldest first; one part of them, see `next_cursor`."""
    body = given(
        filter=given(**criteria) or None,
        all=all or None,
        rate_per_sec=rate_per_sec,
        limit=limit,
        start_at=start_at,
        cursor=cursor,
    )
    return Call("POST", "/dlq/requeue", as_json, json=body)


def delete_dead_letter(letter_id: int) -> Call[Json]:
    """Delete a letter; its run stays as it is."""
    return Call("DELETE", "/dlq/{letter_id}", as_json, {"letter_id": letter_id})


def delete_dead_letters(
    *,
    all: bool = False,
    state: str | None = None,
    limit: int | None = None,
    cursor: str | None = None,
    **criteria: Any,
) -> Call[Json]:
    """Delete many letters; without any criterion `all` must be true."""
    params = given(all=all or None, state=state, limit=limit, cursor=cursor, **criteria)
    # Again with a limit, it would delete as many more.
    return Call("DELETE", "/dlq", as_json, params=params, repeatable=None if limit is None else False)
