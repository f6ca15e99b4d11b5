"""Secrets that all replicas share without configuration: the first replica generates one, the ledger keeps it."""

import secrets

from sqlalchemy import select

from .sql.transaction import Transaction, one_by_one
from .tables import secrets as _secrets


@one_by_one
def agree(transaction: Transaction, name: str) -> str:
    """The secret of this name; generated now if it does not exist."""
    proposal = {"name": name, "value": secrets.token_hex(32)}
    transaction.execute(transaction.insert_if_new(_secrets).values(proposal))
    value: str = transaction.execute(select(_secrets.c.value).where(_secrets.c.name == name)).scalar_one()
    return value
