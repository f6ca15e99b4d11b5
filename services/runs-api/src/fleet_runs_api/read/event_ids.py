"""Ids of server-sent events: a position in a JetStream stream, and the identity of that stream."""

from dataclasses import dataclass

# The largest position that an id may name; sequences are 64-bit integers.
_LARGEST_PLACE = 2**63 - 1


@dataclass(frozen=True, slots=True)
class EventId:
    """A position and its store. It is valid only there: a store that is created again counts from 1."""

    store: str
    place: int

    def __str__(self) -> str:
        return f"{self.store}-{self.place}"

    @classmethod
    def parse(cls, text: str) -> "EventId | None":
        """The id in a text; None if the text is not such an id, so that its client starts from the beginning."""
        store, _, place = text.rpartition("-")
        if not store or not (place.isascii() and place.isdigit()) or len(place) > len(str(_LARGEST_PLACE)):
            return None
        return cls(store, min(int(place), _LARGEST_PLACE))

    def is_older_than(self, other: "EventId") -> bool:
        return self.store == other.store and self.place < other.place
