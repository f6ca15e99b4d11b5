"""Reads the ledger of a fleet directly, without its service."""

from typing import Any

from .fleet import Fleet


def ledger_rows(fleet: Fleet, query: str) -> list[tuple[Any, ...]]:
    return fleet.ledger_rows(query)


def accepted_run_ids(fleet: Fleet) -> set[str]:
    """Every run that the ledger has, ended or not."""
    return {run_id for (run_id,) in fleet.ledger_rows("SELECT run_id FROM runs")}
