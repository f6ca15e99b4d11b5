"""SQL that writes dead letters: inserts, requeues, deletes and expires them, in batches for the group commit."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, and_, delete, select, update

from fleet_contracts.names import ANONYMOUS_TENANT
from fleet_contracts.snapshot import RunSnapshot
from fleet_contracts.status import RunStatus

from ..ledger.letter_groups import GroupKey
from ..ledger.sql.texts import fitting
from ..ledger.sql.transaction import Transaction, one_by_one
from ..ledger.tables import dead_letters as _letters
from ..ledger.tables import runs as _runs
from . import reopening
from .letter import LONGEST_ERROR, Letter, LetterState, Moved, RejectedLetter, error_type_of, fingerprint_of
from .reopening import NotReopened, Reopening

_MOVED = tuple(_letters.c[name] for name in Moved._fields)
_GROUP = tuple(_letters.c[name] for name in GroupKey._fields)


class _NamedRun(NamedTuple):
    """The run that a letter names."""

    run_id: str
    tenant_id: str
    flow_name: str
    tag: str
    status: RunStatus
    attempt: int
    reopened: int
    reason: str | None
    error: str | None


class _Chosen(NamedTuple):
    """A letter that is to be requeued, and the state of its run, if it has one."""

    letter_id: int
    run_id: str | None
    state: str
    run_status: RunStatus | None


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


def enter(transaction: Transaction, letters: Sequence[Letter]) -> Sequence[Moved | RejectedLetter | None]:
    """Insert letters from the stream, each once. None: the ledger has it already.

    A worker may publish any letter on the subjects of its tags, about any run. The letter is accepted only if the
    ledger knows that the run was in this queue and failed in this attempt.
    """
    runs = _runs_of(transaction, letters)
    # Checked one by one: an unfounded letter may have the id of a valid one.
    fits = [_fits_run(letter, runs.get(letter.run_id or "")) for letter in letters]
    rows = {
        letter.message_id: _row_of(letter, runs.get(letter.run_id or ""))
        for letter, fits_run in zip(letters, fits, strict=True)
        if fits_run
    }
    new: dict[str, Moved] = {}
    if rows:
        insert = transaction.insert_if_new(_letters).returning(_letters.c.message_id, *_MOVED)
        new = dict(transaction.rows(insert, _entered, list(rows.values())))
        transaction.letter_groups.entered(rows[message_id] for message_id in new)
    return [
        new.pop(letter.message_id, None) if fits_run else RejectedLetter()
        for letter, fits_run in zip(letters, fits, strict=True)
    ]


@one_by_one
def remove(transaction: Transaction, item: Deletion) -> list[Moved]:
    """Mark letters as deleted; returns those that were not deleted before."""
    chosen = and_(_letters.c.id.in_(item.letter_ids), _letters.c.tenant_id == item.tenant_id)
    gone = _close(transaction, chosen, state=LetterState.DELETED.value, error=None)
    requeued = transaction.rows(
        update(_letters)
        .where(chosen, _letters.c.state == LetterState.REQUEUED)
        .values(state=LetterState.DELETED.value, error=None)
        .returning(*_MOVED),
        Moved,
    )
    return gone + requeued


@one_by_one
def forget(transaction: Transaction, item: TooOld) -> int:
    """Delete the rows of old letters, a page at a time; returns how many."""
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
        groups = transaction.rows(delete(_letters).where(_letters.c.id.in_(old)).returning(*_GROUP), GroupKey)
        if state is LetterState.OPEN:
            transaction.letter_groups.left(groups)
        gone += len(groups)
    return gone


@one_by_one
def requeue(transaction: Transaction, item: Requeueing) -> Requeued:
    """Requeue the runs and close all their open letters, in one transaction."""
    first_letters, refused = _checked(transaction, item)
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
    for asked, reopened in zip(wanted, reopening.reopen(transaction, wanted), strict=True):
        if isinstance(reopened, NotReopened):
            why = WhyNot.RUN_GONE if reopened.status is None else WhyNot.RUN_NOT_FAILED
            refused.append(Refused(first_letters[asked.run_id], why, asked.run_id, reopened.status))
        else:
            runs.append(reopened)
            last_due_at = asked.due_at
    closed = _close(
        transaction,
        and_(_letters.c.run_id.in_([run.run_id for run in runs]), _letters.c.tenant_id == item.tenant_id),
        state=LetterState.REQUEUED.value,
        requeued_at=item.now,
        requeued_by=item.by[:128],
    )
    return Requeued(runs, last_due_at, closed, refused)


def _checked(transaction: Transaction, item: Requeueing) -> tuple[dict[str, int], list[Refused]]:
    """The runs of the letters in order, each with its first letter, and the letters that cannot be requeued.

    The state of the runs is checked later, under their locks.
    """
    rows = transaction.rows(
        select(_letters.c.id, _letters.c.run_id, _letters.c.state, _runs.c.status)
        .outerjoin(_runs, and_(_runs.c.run_id == _letters.c.run_id, _runs.c.tenant_id == _letters.c.tenant_id))
        .where(
            _letters.c.id.in_(item.letter_ids),
            _letters.c.tenant_id == item.tenant_id,
            _letters.c.state != LetterState.DELETED,
        ),
        _Chosen,
    )
    found = {row.letter_id: row for row in rows}
    first_letters: dict[str, int] = {}
    refused = []
    for letter_id in item.letter_ids:
        if letter_id not in found:
            refused.append(Refused(letter_id, WhyNot.NOT_FOUND))
            continue
        chosen = found[letter_id]
        if chosen.run_id is None:
            refused.append(Refused(letter_id, WhyNot.NO_RUN))
        elif chosen.state == LetterState.REQUEUED:
            refused.append(Refused(letter_id, WhyNot.REQUEUED_ALREADY, chosen.run_id, chosen.run_status))
        else:
            first_letters.setdefault(chosen.run_id, letter_id)
    return first_letters, refused


def _close(transaction: Transaction, chosen: ColumnElement[bool], **values: Any) -> list[Moved]:
    """Close open letters and subtract them from their groups."""
    is_open = _letters.c.state == LetterState.OPEN
    changed = update(_letters).where(chosen, is_open).values(**values)
    closed = transaction.rows(changed.returning(*_GROUP, *_MOVED), _closed)
    transaction.letter_groups.left(group for group, _ in closed)
    return [moved for _, moved in closed]


def _closed(tenant_id: str, fingerprint: str, *moved: Any) -> tuple[GroupKey, Moved]:
    return GroupKey(tenant_id, fingerprint), Moved(*moved)


def _entered(message_id: str, *moved: Any) -> tuple[str, Moved]:
    return message_id, Moved(*moved)


def _runs_of(transaction: Transaction, letters: Iterable[Letter]) -> dict[str, _NamedRun]:
    wanted = {letter.run_id for letter in letters if letter.run_id is not None}
    if not wanted:
        return {}
    columns = [_runs.c[name] for name in _NamedRun._fields]
    rows = transaction.rows(select(*columns).where(_runs.c.run_id.in_(wanted)), _NamedRun)
    return {run.run_id: run for run in rows}


def _fits_run(letter: Letter, run: _NamedRun | None) -> bool:
    """Whether a letter fits its run. A letter without a known run is accepted: it belongs to the operator."""
    return run is None or (
        run.status is RunStatus.FAILED
        and run.tag == letter.tag
        and letter.attempt in (None, run.attempt)
        # Else this letter could take the id of the letter of a later end, which would then count as a repeat.
        and letter.named_end in (None, (run.reopened, run.attempt))
    )


def _row_of(letter: Letter, run: _NamedRun | None) -> dict[str, Any]:
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
