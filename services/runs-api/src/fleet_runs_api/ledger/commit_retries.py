"""What a transaction knows of an earlier try of the same, whose answer was lost."""

from sqlalchemy import Connection

_UNSURE = "fleet.unsure"


def note_retry(connection: Connection, *, unsure: bool) -> None:
    connection.info[_UNSURE] = unsure


def may_be_committed(connection: Connection) -> bool:
    """Asked by a batch that must not be done twice: the same was tried before, and its COMMIT may have arrived."""
    return bool(connection.info.get(_UNSURE))
