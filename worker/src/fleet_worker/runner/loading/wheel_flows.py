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
from .offers import offer_of
from .options import OptionsUnusable
from .params import signature_of

FLOWS_GROUP = "pyoco.flows"
_MOST_CHARACTERS = 2000


class WheelFlows(Flows):
    """The worker's own flows, and those that wheels offer.

    A wheel is imported only when a run asks for its flow: a broken one breaks only the flows that it offers. What the
    catalogue should know besides, `describe` finds out in a process of its own.
    """

    def __init__(self, own: Flows, paths: Sequence[str]) -> None:
        self._own = own
        self._offers: dict[str, EntryPoint] = {}
        self._described: dict[str, FlowOffer] = {}
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

    def describe(self) -> None:
        """Import every flow. One that cannot be loaded stays offered, so that its runs fail at once and say why."""
        for name, entry in self._offers.items():
            try:
                self._described[name] = _described(_load(name, entry), self.offer(name))
            except FlowBroken as error:
                self._note_broken(entry, error.__cause__ or error)
            except (Exception, SystemExit) as error:  # noqa: BLE001 - one bad wheel must not hide the others
                self._note_broken(entry, error)

    def offer(self, name: str) -> FlowOffer:
        """No more than the wheel's metadata say, unless it was imported by `describe`."""
        if name in self._described:
            return self._described[name]
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
        self._note(entry, Failure(kind, why, "", entry.value))

    def _note_broken(self, entry: EntryPoint, error: BaseException) -> None:
        self._note(entry, describe_failure(error))

    def _note(self, entry: EntryPoint, failure: Failure) -> None:
        what = f"the flow {entry.name} of {_wheel_of(entry)}"
        self.broken[what] = failure
        message = failure.exc_message[:_MOST_CHARACTERS]
        self.problems.append(BrokenSource(place=what, exc_type=failure.exc_type, message=message))


def _described(flow: Flow, offer: FlowOffer) -> FlowOffer:
    """The offer with what the flow says. Raises OptionsUnusable."""
    try:
        found = offer_of(flow, offer.source, signature_of(flow), module_doc=None)
    except OptionsUnusable:
        raise
    except Exception:  # noqa: BLE001 - the types of a flow's arguments may raise anything; it can be run all the same
        return offer
    # The entry point's name is the one that runs ask for.
    return found.model_copy(update={"name": offer.name})


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
