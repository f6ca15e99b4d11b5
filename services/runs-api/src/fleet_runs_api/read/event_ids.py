"""Ids of server-sent events: a place in a stream of JetStream, and which stream that was."""

from dataclasses import dataclass

# What JetStream counts with.
_LARGEST_PLACE = 2**63 - 1


@dataclass(frozen=True, slots=True)
class EventId:
    """Places of another store mean nothing: one that was lost or made anew counts from 1 again."""

    store: str
    place: int

    def __str__(self) -> str:
        return f"{self.store}-{self.place}"

    @classmethod
    def parse(cls, text: str) -> "EventId | None":
        """None for what is no id of ours: whoever sends it begins anew."""
        store, _, place = text.rpartition("-")
        if not store or not (place.isascii() and place.isdigit()) or len(place) > len(str(_LARGEST_PLACE)):
            return None
        return cls(store, min(int(place), _LARGEST_PLACE))

    def is_older_than(self, other: "EventId") -> bool:
        return self.store == other.store and self.place < other.place
