"""A figure: the same measured on both sides, and how many times better ours is."""

from dataclasses import dataclass
from typing import Any

# Of these more is better; of all others (times, memory, writes) less is.
_RATES = ("per s", "%")


@dataclass(frozen=True)
class Figure:
    name: str
    unit: str
    ours: float
    # None where the peer has nothing to compare with.
    peer: float | None
    # What ours must stay under, if anything.
    limit: float | None = None

    @property
    def misses_limit(self) -> bool:
        return self.limit is not None and self.ours >= self.limit

    @property
    def ratio(self) -> float | None:
        """More than 1: ours is better."""
        if self.peer is None or self.peer <= 0 or self.ours <= 0:
            return None
        return self.ours / self.peer if self.unit in _RATES else self.peer / self.ours

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "unit": self.unit,
            "ours": significant(self.ours),
            "peer": significant(self.peer),
            "ratio": significant(self.ratio),
        }


def significant(value: float | None) -> float | None:
    """Four digits: more would only pretend to be exact."""
    return None if value is None else float(f"{value:.4g}")
