"""SQL that writes dead letters: inserts, requeues, deletes and expires them, in batches for the group commit."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, and_, delete, select, update
from sqlalchemy.dialects import postgresql, sqlite

from fleet_contracts.names import ANONYMOUS_TENANT
from fleet_contracts.snapshot import RunSnapshot
from fleet_contracts.status import RunStatus

from ..ledger.tables import dead_letters as _letters
from ..ledger.tables import runs as _runs
from ..ledger.texts import fitting
from . import reopening
from .groups import GroupKey, letters_entered, letters_left
from .letter import LONGEST_ERROR, Letter, LetterState, Moved, Unfounded, error_type_of, fingerprint_of
from .reopening import NotReopened, Reopening

_MOVED = tuple(
    _letters.c[name]
    for name in ("id", "tenant_id", "fingerprint", "run_id", "flow_name", "tag", "reason")
)  # fmt: skip
_INSERT = {
    "sqlite": sqlite.insert(_letters).on_conflict_do_nothing(),
    "postgresql": postgresql.insert(_letters).on_conflict_do_nothing(),
}


class WhyNot(StrEnum):
    """Why the run of a letter got no further attempt."""

    NOT_FOUND = "not_found"
    NO_RUN = "no_run"
    RUN_GONE = "run_gone"
    RUN_NOT_FAILED = "run_not_failed"
    REQUEUED_ALREADY = "requeued_already"


@dataclass(frozen=True, slots=True)
class Refused:
    letter_id: int
    why: WhyNot
    run_id: str | None = None
    run_status: RunStatus | None = None


@dataclass(frozen=True, slots=True)
class Requeueing:
    """Letters whose runs are to be requeued: the first at `due_at`, each next one `spacing_seconds` later."""

    letter_ids: Sequence[int]
    tenant_id: str
    by: str
    now: float
    due_at: float
    spacing_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Requeued:
    """The requeued runs, when the last of them is due, and the letters that were closed or refused."""

    runs: Sequence[RunSnapshot]
    last_due_at: float | None
    letters: Sequence[Moved]
    refused: Sequence[Refused]


@dataclass(frozen=True, slots=True)
class Deletion:
    letter_ids: Sequence[int]
    tenant_id: str


@dataclass(frozen=True, slots=True)
class TooOld:
    """Letters to delete by age: closed ones and, if they are not kept for ever, open ones."""

    closed_before: float
    open_before: float | None
    limit: int


def enter(connection: Connection, letters: Sequence[Letter]) -> Sequence[Moved | Unfounded | None]:
    """Insert letters from the stream, each once. None: the ledger has it already.

    A worker may publish any letter on the subjects of its tags, about any run. The letter is accepted only if the
    ledger knows that the run was in this queue and failed in this attempt.
    """
    runs = _runs_of(connection, letters)
    # Checked one by one: an unfounded letter may have the id of a valid one.
    are_founded = [_is_founded(letter, runs.get(letter.run_id or "")) for letter in letters]
    rows = {
        letter.message_id: _row_of(letter, runs.get(letter.run_id or ""))
        for letter, is_founded in zip(letters, are_founded, strict=True)
        if is_founded
    }
    new: dict[str, Moved] = {}
    if rows:
        inserted = connection.execute(
            _INSERT[connection.dialect.name].returning(_letters.c.message_id, *_MOVED), list(rows.values())
        )
        new = {row.message_id: _moved(row) for row in inserted}
        letters_entered(connection, (rows[message_id] for message_id in new))
    return [
        new.pop(letter.message_id, None) if is_founded else Unfounded()
        for letter, is_founded in zip(letters, are_founded, strict=True)
    ]


def requeue(connection: Connection, wanted: Sequence[Requeueing]) -> Sequence[Requeued]:
    return [_requeue(connection, item) for item in wanted]


def remove(connection: Connection, wanted: Sequence[Deletion]) -> Sequence[Sequence[Moved]]:
    """Mark letters as deleted; returns those that were not deleted before."""
    results = []
    for item in wanted:
        chosen = and_(_letters.c.id.in_(item.letter_ids), _letters.c.tenant_id == item.tenant_id)
        gone = _close(connection, chosen, state=LetterState.DELETED.value, error=None)
        gone += connection.execute(
            update(_letters)
            .where(chosen, _letters.c.state == LetterState.REQUEUED)
            .values(state=LetterState.DELETED.value, error=None)
            .returning(*_MOVED)
        ).all()
        results.append([_moved(row) for row in gone])
    return results


def forget(connection: Connection, wanted: Sequence[TooOld]) -> Sequence[int]:
    """Delete the rows of old letters, a page at a time; returns how many."""
    results = []
    for item in wanted:
        gone = 0
        for state in LetterState:
            before = item.open_before if state is LetterState.OPEN else item.closed_before
            if before is None:
                continue
            old = (
                select(_letters.c.id)
                .where(_letters.c.state == state, _letters.c.at < before)
                .order_by(_letters.c.at)
                .limit(item.limit - gone)
            )
            rows = connection.execute(delete(_letters).where(_letters.c.id.in_(old)).returning(*_MOVED)).all()
            if state is LetterState.OPEN:
                letters_left(connection, (_group_of(row) for row in rows))
            gone += len(rows)
        results.append(gone)
    return results


def _requeue(connection: Connection, item: Requeueing) -> Requeued:
    """Requeue the runs and close all their open letters, in one transaction."""
    refused = []
    # If a run has several letters, the first one represents them all.
    first_letters: dict[str, int] = {}
    for letter_id, row in _with_runs(connection, item):
        if (no := _refusal(letter_id, row)) is not None:
            refused.append(no)
        else:
            first_letters.setdefault(row.run_id, letter_id)
    wanted = [
        Reopening(
            run_id=run_id,
            tenant_id=item.tenant_id,
            due_at=item.due_at + place * item.spacing_seconds,
            now=item.now,
            by=item.by,
        )
        for place, run_id in enumerate(first_letters)
    ]
    runs, last_due_at = [], None
    for asked, outcome in zip(wanted, reopening.reopen(connection, wanted), strict=True):
        if isinstance(outcome, NotReopened):
            why = WhyNot.RUN_GONE if outcome.status is None else WhyNot.RUN_NOT_FAILED
            refused.append(Refused(first_letters[asked.run_id], why, asked.run_id, outcome.status))
        else:
            runs.append(outcome)
            last_due_at = asked.due_at
    closed = _close(
        connection,
        and_(_letters.c.run_id.in_([run.run_id for run in runs]), _letters.c.tenant_id == item.tenant_id),
        state=LetterState.REQUEUED.value,
        requeued_at=item.now,
        requeued_by=item.by[:128],
    )
    return Requeued(runs, last_due_at, [_moved(row) for row in closed], refused)


def _with_runs(connection: Connection, item: Requeueing) -> list[tuple[int, Any]]:
    """Each requested letter in order, with the status of its run; None for a letter that does not exist."""
    rows = connection.execute(
        select(_letters.c.id, _letters.c.run_id, _letters.c.state, _runs.c.status.label("run_status"))
        .outerjoin(_runs, and_(_runs.c.run_id == _letters.c.run_id, _runs.c.tenant_id == _letters.c.tenant_id))
        .where(
            _letters.c.id.in_(item.letter_ids),
            _letters.c.tenant_id == item.tenant_id,
            _letters.c.state != LetterState.DELETED,
        )
    )
    found = {row.id: row for row in rows}
    return [(letter_id, found.get(letter_id)) for letter_id in item.letter_ids]


def _refusal(letter_id: int, row: Any) -> Refused | None:
    """Why this letter cannot be requeued, whatever the state of its run; that is checked later, under its lock."""
    if row is None:
        return Refused(letter_id, WhyNot.NOT_FOUND)
    if row.run_id is None:
        return Refused(letter_id, WhyNot.NO_RUN)
    if row.state == LetterState.REQUEUED:
        status = RunStatus(row.run_status) if row.run_status else None
        return Refused(letter_id, WhyNot.REQUEUED_ALREADY, row.run_id, status)
    return None


def _close(connection: Connection, chosen: ColumnElement[bool], **values: Any) -> list[Row[Any]]:
    """Close open letters and subtract them from their groups."""
    closed = connection.execute(
        update(_letters).where(chosen, _letters.c.state == LetterState.OPEN).values(**values).returning(*_MOVED)
    ).all()
    letters_left(connection, (_group_of(row) for row in closed))
    return list(closed)


def _runs_of(connection: Connection, letters: Iterable[Letter]) -> dict[str, Any]:
    wanted = {letter.run_id for letter in letters if letter.run_id is not None}
    if not wanted:
        return {}
    columns = ("run_id", "tenant_id", "flow_name", "tag", "status", "attempt", "reopened", "reason", "error")
    rows = connection.execute(select(*(_runs.c[name] for name in columns)).where(_runs.c.run_id.in_(wanted)))
    return {row.run_id: row for row in rows}


def _is_founded(letter: Letter, run: Any) -> bool:
    """Whether a letter fits its run. A letter without a known run is accepted: it belongs to the operator."""
    return run is None or (
        run.status == RunStatus.FAILED
        and run.tag == letter.tag
        and letter.attempt in (None, run.attempt)
        # Else this letter could take the id of the letter of a later end, which would then count as a repeat.
        and letter.named_end in (None, (run.reopened, run.attempt))
    )


def _row_of(letter: Letter, run: Any) -> dict[str, Any]:
    """The row of a letter. Tenant, flow and error come from its run; without a run it belongs to the operator."""
    flow_name = run.flow_name if run else letter.flow_name
    reason = (run and run.reason) or letter.reason
    error = fitting(run.error, LONGEST_ERROR) if run and run.error else letter.error
    error_type = error_type_of(error, reason)
    values = asdict(letter)
    del values["named_end"]
    return {
        **values,
        "tenant_id": run.tenant_id if run else ANONYMOUS_TENANT,
        "flow_name": flow_name,
        "reason": reason,
        "error": error,
        "error_type": error_type,
        "fingerprint": fingerprint_of(reason, flow_name, error_type),
        "state": LetterState.OPEN.value,
    }


def _moved(row: Row[Any]) -> Moved:
    return Moved(row.id, row.run_id, row.flow_name, row.tag, row.reason)


def _group_of(row: Row[Any]) -> GroupKey:
    return GroupKey(row.tenant_id, row.fingerprint)
