"""Marks a transaction as a retry of one that may have been committed, although its answer was lost."""

from sqlalchemy import Connection

_UNSURE = "fleet.unsure"


def note_retry(connection: Connection, *, unsure: bool) -> None:
    connection.info[_UNSURE] = unsure


def may_be_committed(connection: Connection) -> bool:
    """Whether an earlier try of this transaction may have been committed; for batches that must not be done twice."""
    return bool(connection.info.get(_UNSURE))
