"""Loads a runner's flows: from a resolver function, or all flows of the Python files in a folder."""

import importlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyoco import Flow

from fleet_contracts.catalogue import (
    RESERVED_FLOW_NAMES,
    BrokenSource,
    Catalogue,
    FlowOffer,
    FlowSource,
    SourceKind,
)
from fleet_contracts.dead_letter import DeadLetterReason

from ...boundary.frames import Failure
from ..failures import describe_failure
from .offers import offer_of
from .options import OptionsUnusable
from .params import signature_of
from .sources import assigned_lines, broken_source, docstring_of, import_file, import_source, source_files


class FlowsUnusable(Exception):
    """The flows cannot be loaded at all; the message says what to fix."""


class FlowNotFound(Exception):
    """There is no such flow here; the message says why."""

    reason = DeadLetterReason.FLOW_NOT_FOUND


class FlowBroken(FlowNotFound):
    """The flow cannot be loaded or built; the exception behind it is `__cause__`.

    `details` are only for the submitter of the run: they may quote what was submitted. `sentence` does not.
    """

    def __init__(self, sentence: str, details: str) -> None:
        super().__init__(f"{sentence}{details}")
        self.sentence = sentence


class Flows:
    """The flows of a worker that has none of its own: all of them come by wheel."""

    def __init__(self) -> None:
        self.names: list[str] = []
        # For the log, by file; the same for the catalogue.
        self.broken: dict[str, Failure] = {}
        self.problems: list[BrokenSource] = []
        # Why a flow of this name cannot be used.
        self.unusable: dict[str, str] = {}

    def resolve(self, name: str) -> Flow:
        raise FlowNotFound(f"flow {name!r} is not known to this worker, which has no flows of its own")

    def knows_params(self, name: str) -> bool:
        """Whether the catalogue has the schema of the flow's params: then others than these are refused."""
        return False

    def catalogue(self) -> Catalogue:
        """What this worker offers, and what it could not load."""
        return Catalogue(flows=[self.offer(name) for name in self.names], broken=self.problems)

    def offer(self, name: str) -> FlowOffer:
        raise FlowNotFound(f"flow {name!r} is not offered")


def load_flows(flow_resolver: str | None, flows_dir: str | None) -> Flows:
    if flow_resolver is not None:
        return ResolvedFlows(flow_resolver)
    if flows_dir is not None:
        return FolderFlows(Path(flows_dir))
    raise FlowsUnusable("no flows were given: use --flow-resolver, --flows-dir or --wheel-sync")


def of_reserved_name(name: str) -> str:
    return f"cannot be used: its name is reserved for the address /flows/{name}; give the flow another name"


class ResolvedFlows(Flows):
    """A user's function from name to Flow; a KeyError from it means that there is none."""

    def __init__(self, spec: str) -> None:
        super().__init__()
        self._spec = spec
        self._resolver = _load_resolver(spec)

    def catalogue(self) -> Catalogue:
        return Catalogue(is_open=True)

    def resolve(self, name: str) -> Flow:
        try:
            flow = self._resolver(name)
        except KeyError as error:
            raise FlowNotFound(f"flow {name!r} is not known to the flow resolver {self._spec}") from error
        if not isinstance(flow, Flow):
            raise TypeError(
                f"the flow resolver {self._spec} returned a {type(flow).__name__} for {name!r}, not a Flow"
            )
        return flow


@dataclass(frozen=True)
class _Found:
    """A flow with the file that defines it, as far as that is known: other files may import it."""

    flow: Flow
    file: Path
    line: int | None

    def shown(self, folder: Path) -> str:
        place = str(self.file.relative_to(folder))
        return place if self.line is None else f"{place}:{self.line}"


class FolderFlows(Flows):
    """Every module-level Flow of a folder's Python files, under its own name."""

    def __init__(self, folder: Path) -> None:
        if not folder.is_dir():
            raise FlowsUnusable(f"the flows folder {folder} does not exist; give another with --flows-dir")
        super().__init__()
        self._folder = folder = folder.absolute()
        self._found: dict[str, list[_Found]] = {}
        self._offers: dict[str, FlowOffer] = {}
        # Files may import their neighbours. Last on the path, so that none of them hides a library.
        sys.path.append(str(folder))
        for file in source_files(folder):
            self._load(file)
        for name, found in self._found.items():
            if name in RESERVED_FLOW_NAMES:
                self._refuse(name, found[0], "FlowNameReserved", f"flow {name!r} {of_reserved_name(name)}")
            elif len(found) > 1:
                self._refuse_duplicates(name, found)
            else:
                self._describe(name, found[0])
        self.names = sorted(self._offers)

    def knows_params(self, name: str) -> bool:
        return name in self._offers and self._offers[name].params_schema is not None

    def resolve(self, name: str) -> Flow:
        if (sentence := self.unusable.get(name)) is not None:
            raise FlowNotFound(sentence)
        if name not in self._found:
            known = ", ".join(self.names) or "none"
            raise FlowNotFound(f"flow {name!r} is not known to this worker; known flows: {known}")
        return self._found[name][0].flow

    def offer(self, name: str) -> FlowOffer:
        return self._offers[name]

    def _describe(self, name: str, found: _Found) -> None:
        place = str(found.file.relative_to(self._folder))
        source = FlowSource(kind=SourceKind.FILE, place=place, line=found.line)
        try:
            self._offers[name] = offer_of(
                found.flow, source, signature_of(found.flow), module_doc=self._doc_of(found)
            )
        except OptionsUnusable as error:
            sentence = f"flow {name!r} of {found.shown(self._folder)} cannot be used: its options are wrong: {error}"
            self._refuse(name, found, "OptionsUnusable", sentence)
        except Exception:  # noqa: BLE001 - the types of a flow's arguments may raise anything; it can be run all the same
            self._offers[name] = FlowOffer(name=name, source=source)

    def _doc_of(self, found: _Found) -> str | None:
        """The docstring of the flow's module, if that defines no other flow."""
        flows_there = [one for group in self._found.values() for one in group if one.file == found.file]
        return docstring_of(found.file) if len(flows_there) == 1 else None

    def _load(self, file: Path) -> None:
        try:
            module = import_source(file, self._folder)
            for name, value in list(vars(module).items()):
                if isinstance(value, Flow):
                    self._add(_Found(value, file, assigned_lines(file).get(name)))
        except (Exception, SystemExit) as error:  # noqa: BLE001 - one bad file must not hide the others
            self.broken[str(file)] = describe_failure(error)
            self.problems.append(broken_source(file, self._folder, error))

    def _add(self, new: _Found) -> None:
        found = self._found.setdefault(new.flow.name, [])
        for number, known in enumerate(found):
            if known.flow is new.flow:
                if known.line is None:
                    found[number] = new
                return
        found.append(new)

    def _refuse_duplicates(self, name: str, found: list[_Found]) -> None:
        places = [one.shown(self._folder) for one in found]
        sentence = (
            f"flow {name!r} is defined more than once, so it is not used: in {', '.join(places[:-1])} and in "
            f"{places[-1]}; give each flow a name of its own"
        )
        self._refuse(name, found[-1], "FlowNameTaken", sentence)

    def _refuse(self, name: str, found: _Found, kind: str, sentence: str) -> None:
        self.unusable[name] = sentence
        place = str(found.file.relative_to(self._folder))
        self.broken[f"{found.file} (flow {name!r})"] = Failure(kind, sentence, "", found.shown(self._folder))
        self.problems.append(BrokenSource(place=place, exc_type=kind, message=sentence, line=found.line))


def _load_resolver(spec: str) -> Callable[[str], Any]:
    place, _, function = spec.rpartition(":")
    try:
        if place.endswith(".py"):
            file = Path(place).resolve()
            if not file.is_file():
                raise FlowsUnusable(f"the flow resolver's file {place} does not exist")
            sys.path.append(str(file.parent))
            module = import_file(file)
        else:
            module = importlib.import_module(place)
        resolver = getattr(module, function)
    except FlowsUnusable:
        raise
    except (Exception, SystemExit) as error:
        reason = f"{type(error).__name__}: {error}"
        raise FlowsUnusable(f"the flow resolver {spec} cannot be imported ({reason})") from error
    if not callable(resolver):
        raise FlowsUnusable(f"the flow resolver {spec} is a {type(resolver).__name__}, not a function")
    return resolver  # type: ignore[no-any-return]
