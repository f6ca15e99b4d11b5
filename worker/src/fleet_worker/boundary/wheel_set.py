"""A set of synced wheels, as one generation of runners uses it."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from fleet_contracts.wheel import InstalledWheel, WheelInUse


@dataclass(frozen=True, slots=True)
class WheelSet:
    wheels: Sequence[InstalledWheel] = ()
    # Where each of them is installed, in the same order.
    paths: Sequence[str] = ()
    # The same in the form that snapshots have; made once, because it goes into every snapshot.
    in_use: list[WheelInUse] = field(init=False)

    def __post_init__(self) -> None:
        in_use = [WheelInUse(name=wheel.name, sha256_hex=wheel.sha256_hex) for wheel in self.wheels]
        object.__setattr__(self, "in_use", in_use)

    @property
    def names(self) -> list[str]:
        return [wheel.name for wheel in self.wheels]


NO_WHEELS = WheelSet()
