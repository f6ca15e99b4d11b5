"""Reads the ledger of a fleet directly, without its service."""

from .fleet import Fleet


def accepted_run_ids(fleet: Fleet) -> set[str]:
    """Every run that the ledger has, ended or not."""
    return {run_id for (run_id,) in fleet.ledger_rows("SELECT run_id FROM runs")}
