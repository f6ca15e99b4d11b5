"""Reads the wheel registry: lists the wheels, detects changes, fetches a wheel."""

from dataclasses import dataclass
from pathlib import Path

from fleet_contracts.names import object_metas_subject
from fleet_kit.nats.link import NatsLink
from fleet_kit.nats.messages import latest_message
from fleet_kit.nats.stores.objects import ObjectStore, StoredObject


@dataclass(frozen=True, slots=True)
class Mark:
    """Identifies the latest change of the registry: if the mark differs, the registry has changed."""

    sequence: int
    # Needed because the sequence of a registry that was made anew begins again.
    stored_at: float


class WheelRegistry:
    def __init__(self, link: NatsLink, bucket: str) -> None:
        self._link = link
        self._store = ObjectStore(link, bucket)
        # Every change of a wheel is a message on this subject, which can be subscribed to.
        self.changes_subject = object_metas_subject(bucket)

    async def mark(self) -> Mark:
        """Read the mark: one small request, however many wheels there are."""
        message = await latest_message(self._link, self._store.stream, self.changes_subject)
        return Mark(message.sequence, message.stored_at) if message is not None else Mark(0, 0.0)

    async def wheels(self) -> dict[str, StoredObject]:
        """Every wheel by its nuid."""
        return {stored.nuid: stored for stored in (await self._store.list()).objects}

    async def fetch(self, stored: StoredObject, file: Path) -> None:
        """Fetch a wheel. Raises ObjectDamaged, and leaves no complete file, if the bytes do not match its SHA-256."""
        with file.open("wb") as out:
            async for piece in self._store.read(stored):
                out.write(piece)
