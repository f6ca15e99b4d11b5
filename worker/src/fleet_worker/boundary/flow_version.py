"""A version of what runners load: wheels, own flows, libraries and environment. It never changes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from .wheel_set import NO_WHEELS, WheelSet

# Shorter values are not masked: they would be found in every other word.
_SHORTEST_SECRET = 4


@dataclass(frozen=True, slots=True)
class FlowSources:
    """The worker's own flows, and what they are loaded with."""

    # The folder that runners load flows from: the flows folder itself, or a copy of its code.
    flows_dir: str | None = None
    # The flows folder as messages name it.
    shown_as: str | None = None
    # Where the libraries of the flows folder are installed.
    library_paths: Sequence[str] = ()
    # Variables for runners alone.
    env: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def secrets(self) -> list[str]:
        """The values of the variables, which runners mask in all that they report."""
        return [value for value in self.env.values() if len(value) >= _SHORTEST_SECRET]

    def shown_path(self, place: str) -> str:
        """A file of the copy by its path in the flows folder; any other place as it is."""
        if self.flows_dir is None or self.shown_as is None or not place.startswith(f"{self.flows_dir}/"):
            return place
        return self.shown_as + place.removeprefix(self.flows_dir)

    def had_file(self, place: str) -> bool:
        """Whether a file that messages name by this path was in this version."""
        if self.flows_dir is None or self.shown_as is None:
            return False
        file = Path(self.shown_as, place)
        return file.is_relative_to(self.shown_as) and Path(self.flows_dir, file.relative_to(self.shown_as)).is_file()


@dataclass(frozen=True, slots=True, eq=False)
class FlowVersion:
    """Runners of another version are replaced. No two versions are equal: code outside of the folder may differ."""

    wheels: WheelSet = NO_WHEELS
    sources: FlowSources = FlowSources()
