"""A set of synced wheels, as one generation of runners uses it."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from fleet_contracts.wheel import InstalledWheel, WheelInUse


@dataclass(frozen=True)
class WheelSet:
    wheels: Sequence[InstalledWheel] = ()
    # Where each of them is installed, in the same order.
    paths: Sequence[str] = ()

    @cached_property
    def in_use(self) -> list[WheelInUse]:
        """The same in the form that snapshots have; made once, because it goes into every snapshot."""
        return [WheelInUse(name=wheel.name, sha256_hex=wheel.sha256_hex) for wheel in self.wheels]

    @property
    def names(self) -> list[str]:
        return [wheel.name for wheel in self.wheels]


NO_WHEELS = WheelSet()
