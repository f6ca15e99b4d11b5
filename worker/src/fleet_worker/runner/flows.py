"""Loads a runner's flows: from a resolver function, or all flows of the *.py files in a folder."""

import importlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from pyoco import Flow

from fleet_contracts.catalogue import BrokenSource, Catalogue, FlowOffer, FlowSource, SourceKind
from fleet_contracts.dead_letter import DeadLetterReason

from ..boundary.frames import Failure
from .failures import describe_failure


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
        self.broken: dict[str, Failure] = {}

    def resolve(self, name: str) -> Flow:
        raise FlowNotFound(f"flow {name!r} is not known to this worker, which has no flows of its own")

    def catalogue(self) -> Catalogue:
        """What this worker offers, and what it could not load."""
        broken = [
            BrokenSource(place=place, exc_type=failure.exc_type, message=failure.exc_message)
            for place, failure in self.broken.items()
        ]
        return Catalogue(
            flows=[FlowOffer(name=name, source=self._source(name)) for name in self.names], broken=broken
        )

    def _source(self, name: str) -> FlowSource:
        raise FlowNotFound(f"flow {name!r} has no source")


def load_flows(flow_resolver: str | None, flows_dir: str | None) -> Flows:
    if flow_resolver is not None:
        return ResolvedFlows(flow_resolver)
    if flows_dir is not None:
        return FolderFlows(Path(flows_dir))
    raise FlowsUnusable("no flows were given: use --flow-resolver, --flows-dir or --wheel-sync")


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


class FolderFlows(Flows):
    """Every module-level Flow of a folder's *.py files, under its own name."""

    def __init__(self, folder: Path) -> None:
        if not folder.is_dir():
            raise FlowsUnusable(f"the flows folder {folder} does not exist; give another with --flows-dir")
        super().__init__()
        self._flows: dict[str, Flow] = {}
        self._files: dict[str, Path] = {}
        # Files may import their neighbours. Last on the path, so that none of them hides a library.
        sys.path.append(str(folder))
        for file in sorted(folder.glob("*.py")):
            if not file.name.startswith("_"):
                self._load(file)
        self.names = sorted(self._flows)

    def resolve(self, name: str) -> Flow:
        flow = self._flows.get(name)
        if flow is None:
            known = ", ".join(self.names) or "none"
            raise FlowNotFound(f"flow {name!r} is not known to this worker; known flows: {known}")
        return flow

    def _source(self, name: str) -> FlowSource:
        return FlowSource(kind=SourceKind.FILE, place=self._files[name].name)

    def _load(self, file: Path) -> None:
        try:
            module = import_file(file)
            for value in list(vars(module).values()):
                if not isinstance(value, Flow):
                    continue
                if self._flows.setdefault(value.name, value) is not value:
                    raise ValueError(f"another file already offers a flow named {value.name!r}")
                self._files.setdefault(value.name, file)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - one bad file must not hide the others
            self.broken[str(file)] = describe_failure(error)


def import_file(file: Path) -> ModuleType:
    """Import a file under its own name, or under a longer one when a library has that name; once."""
    found = importlib.util.find_spec(file.stem) if file.stem.isidentifier() else None
    if found is not None and found.origin is not None and Path(found.origin).resolve() == file.resolve():
        return importlib.import_module(file.stem)
    spec = importlib.util.spec_from_file_location(f"pyoco_flows_{file.stem}", file)
    assert spec is not None
    assert spec.loader is not None
    if getattr(sys.modules.get(spec.name), "__file__", None) == spec.origin:
        return sys.modules[spec.name]
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[spec.name]
        raise
    return module


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
