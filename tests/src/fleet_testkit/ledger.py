"""Look into the SQLite ledger of a stack, past its service."""

import sqlite3
from contextlib import closing
from typing import Any

from .stack import Stack


def ledger_rows(stack: Stack, query: str) -> list[tuple[Any, ...]]:
    """Read only: a test never changes the ledger behind the service's back."""
    with closing(sqlite3.connect(f"file:{stack.data_dir / 'runs.db'}?mode=ro", uri=True)) as ledger:
        return ledger.execute(query).fetchall()


def accepted_run_ids(stack: Stack) -> set[str]:
    """Every run that the ledger has, ended or not."""
    return {run_id for (run_id,) in ledger_rows(stack, "SELECT run_id FROM runs")}
