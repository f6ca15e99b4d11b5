"""The part of the ledger's record of a run that the rules for snapshots need."""

from dataclasses import dataclass, fields
from typing import Any, Self

from fleet_contracts.status import RunStatus


@dataclass(frozen=True, slots=True)
class Known:
    """The ledger's record of a run."""

    status: RunStatus
    attempt: int
    revision: int
    failures: int = 0
    reopened: int = 0
    not_before: float | None = None

    @classmethod
    def of(cls, row: Any) -> Self:
        """Made from a row with columns of these names."""
        known = {field.name: getattr(row, field.name) for field in fields(cls)}
        return cls(**known | {"status": RunStatus(row.status)})


KNOWN_COLUMNS = tuple(field.name for field in fields(Known))
