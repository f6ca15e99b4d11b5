"""Secrets that all replicas share without being told: the first one to ask makes it, the ledger keeps it."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from sqlalchemy import Connection, select
from sqlalchemy.dialects import postgresql, sqlite

from .tables import secrets as _secrets

_INSERT: dict[str, Any] = {"sqlite": sqlite.insert, "postgresql": postgresql.insert}


class Proposal(NamedTuple):
    name: str
    value: str


def agree(connection: Connection, proposals: Sequence[Proposal]) -> Sequence[str]:
    """The value of each secret: the one proposed, unless somebody was first. A batch for the group commit."""
    insert = _INSERT[connection.dialect.name]
    for name, value in proposals:
        connection.execute(insert(_secrets).values(name=name, value=value).on_conflict_do_nothing())
    names = [proposal.name for proposal in proposals]
    kept = dict(connection.execute(select(_secrets.c.name, _secrets.c.value).where(_secrets.c.name.in_(names))).all())
    return [kept[name] for name in names]
