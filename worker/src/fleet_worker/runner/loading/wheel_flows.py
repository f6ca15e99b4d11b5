"""Flows of synced wheels, found by entry points of the group `pyoco.flows`."""

from collections.abc import Collection, Sequence
from importlib.metadata import Distribution, EntryPoint, distributions

from pyoco import Flow

from fleet_contracts.catalogue import (
    RESERVED_FLOW_NAMES,
    BrokenSource,
    Catalogue,
    FlowOffer,
    FlowSource,
    SourceKind,
)

from ...boundary.frames import Failure
from ..failures import describe_failure
from .flows import FlowBroken, FlowNotFound, Flows, of_reserved_name

FLOWS_GROUP = "pyoco.flows"


class WheelFlows(Flows):
    """The worker's own flows, and those that wheels offer.

    A wheel is imported only when a run asks for its flow: a broken one breaks only the flows that it offers.
    """

    def __init__(self, own: Flows, paths: Sequence[str]) -> None:
        self._own = own
        self._offers: dict[str, EntryPoint] = {}
        self.broken, self.problems = dict(own.broken), list(own.problems)
        for distribution in distributions(path=list(paths)):
            self._read(distribution, taken={*own.names, *own.unusable})
        self.names = sorted({*own.names, *self._offers})

    def resolve(self, name: str) -> Flow:
        try:
            return self._own.resolve(name)
        except FlowNotFound as error:
            if name in self._own.unusable:
                raise
            if (entry := self._offers.get(name)) is None:
                raise FlowNotFound(f"{error}; wheels offer: {', '.join(sorted(self._offers)) or 'none'}") from error
        return _load(name, entry)

    def knows_params(self, name: str) -> bool:
        return self._own.knows_params(name)

    def catalogue(self) -> Catalogue:
        catalogue = super().catalogue()
        return catalogue.model_copy(update={"is_open": self._own.catalogue().is_open})

    def offer(self, name: str) -> FlowOffer:
        """No more than the wheel's metadata say, because nothing of it has been imported."""
        if (entry := self._offers.get(name)) is None:
            return self._own.offer(name)
        package, version = (entry.dist.name, entry.dist.version) if entry.dist is not None else (None, None)
        source = FlowSource(kind=SourceKind.WHEEL, place=entry.value, package=package, version=version)
        return FlowOffer(name=name, source=source)

    def _read(self, distribution: Distribution, *, taken: Collection[str]) -> None:
        for entry in distribution.entry_points.select(group=FLOWS_GROUP):
            if entry.name in RESERVED_FLOW_NAMES:
                self._refuse(entry, "FlowNameReserved", f"it {of_reserved_name(entry.name)}")
            elif entry.name in taken:
                self._refuse(entry, "FlowNameTaken", "the worker has a flow of this name of its own, which is used")
            elif entry.name in self._offers:
                why = f"{_wheel_of(self._offers[entry.name])} offers a flow of this name, too"
                self._refuse(entry, "FlowNameTaken", why)
            else:
                self._offers[entry.name] = entry

    def _refuse(self, entry: EntryPoint, kind: str, why: str) -> None:
        what = f"the flow {entry.name} of {_wheel_of(entry)}"
        self.broken[what] = Failure(kind, why, "", entry.value)
        self.problems.append(BrokenSource(place=what, exc_type=kind, message=why))


def _load(name: str, entry: EntryPoint) -> Flow:
    try:
        offered = entry.load()
    except (Exception, SystemExit) as error:
        failure = describe_failure(error)
        raise FlowBroken(
            f"flow {name!r} of {_wheel_of(entry)} cannot be loaded",
            f" ({failure.exc_type}: {failure.exc_message}; {failure.exc_origin})",
        ) from error
    flow = offered if isinstance(offered, Flow) else offered() if callable(offered) else offered
    if not isinstance(flow, Flow):
        raise FlowNotFound(
            f"flow {name!r} of {_wheel_of(entry)} cannot be used: {entry.value} is a {type(flow).__name__}, "
            "neither a Flow nor a function that returns one"
        )
    return flow


def _wheel_of(entry: EntryPoint) -> str:
    return f"wheel {entry.dist.name} {entry.dist.version}" if entry.dist is not None else "a wheel"
