"""Secrets that all replicas share without configuration: the first replica generates one, the ledger keeps it."""

import secrets
from typing import Any

from sqlalchemy import select
from sqlalchemy.dialects import postgresql, sqlite

from .database import Database, unavailable_if_away
from .tables import secrets as _secrets

_INSERT: dict[str, Any] = {"sqlite": sqlite.insert, "postgresql": postgresql.insert}


def agree(database: Database, name: str) -> str:
    """The secret of this name; generated now if it does not exist."""
    with unavailable_if_away(), database.writer.begin() as connection:
        proposal = _INSERT[connection.dialect.name](_secrets).values(name=name, value=secrets.token_hex(32))
        connection.execute(proposal.on_conflict_do_nothing())
        value: str = connection.execute(select(_secrets.c.value).where(_secrets.c.name == name)).scalar_one()
        return value
