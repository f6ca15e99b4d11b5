"""Finds the functions and plug-in tasks that a workflow file names, and refuses those that are not allowed."""

import importlib
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.machinery import PathFinder
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType
from typing import Any

from pyoco import Flow
from pyoco.core.models import Task
from pyoco.discovery.plugins import PluginRegistry, iter_entry_points
from pyoco.dsl.syntax import TaskWrapper

from fleet_contracts.dead_letter import DeadLetterReason
from fleet_contracts.workflow import split_callable

from .flows import FlowBroken, FlowNotFound
from .sources import comes_from, import_file

_SETTING = "PYOCO_WORKFLOW_CALLABLE_ALLOW"


class CallableNotAllowed(FlowNotFound):
    """The workflow file names code that this worker does not allow."""

    reason = DeadLetterReason.CALLABLE_NOT_ALLOWED


@dataclass(frozen=True)
class Callables:
    """Allowed are all modules of `folders` and `wheels`, and `modules` with their submodules.

    Wheels need no allow list: the right to upload one is the right to have any code executed here.
    """

    folders: Sequence[Path]
    modules: Sequence[str]
    wheels: Sequence[Path]

    def load(self, spec: str) -> Callable[..., Any]:
        """The function that `module:function` names. Raises FlowNotFound if it does not exist or is not allowed."""
        module_name, name = split_callable(spec)
        if not self._may_import(module_name):
            raise CallableNotAllowed(
                f"callable {spec} is not allowed; add its module to {_SETTING} on the worker, "
                f"e.g. {_SETTING}={module_name}"
            )
        found = getattr(self._import(module_name), name, None)
        function = (
            found.task.func if isinstance(found, TaskWrapper) else found.func if isinstance(found, Task) else found
        )
        if function is None or isinstance(function, Flow) or not callable(function):
            kind = "does not exist" if found is None else f"is a {type(found).__name__}, not a function or a task"
            raise FlowNotFound(f"callable {spec} {kind}")
        # An allowed module may have imported the function from one that is not.
        home = str(getattr(function, "__module__", None))
        if not self._is_home(home):
            raise CallableNotAllowed(
                f"callable {spec} is not allowed, because it comes from the module {home}; "
                f"add that to {_SETTING} on the worker, e.g. {_SETTING}={home}"
            )
        return function  # type: ignore[no-any-return]

    def load_plugin_task(self, name: str) -> Task:
        """The task that an allowed plug-in offers under this name."""
        if (task := self._offers.tasks.get(name)) is not None:
            return task
        if others := sorted({entry.module for entry in iter_entry_points() if not self._may_import(entry.module)}):
            raise CallableNotAllowed(
                f"no allowed plug-in offers the task {name}; to allow another, add its module to {_SETTING} on the "
                f"worker; installed: {', '.join(others)}"
            )
        sentence, failed = f"no plug-in of this worker offers the task {name}", self._offers.failed
        if not failed:
            raise FlowNotFound(sentence)
        details = (f"; plug-in {plugin} failed: {type(error).__name__}: {error}" for plugin, error in failed.items())
        raise FlowBroken(sentence, "".join(details)) from next(iter(failed.values()))

    @cached_property
    def _offers(self) -> "_Offers":
        offers = _Offers()
        for entry in iter_entry_points():
            if self._may_import(entry.module):
                offers.add(entry)
        return offers

    def _may_import(self, module_name: str) -> bool:
        return (
            self._is_named(module_name)
            or any(_find(folder, module_name) for folder in self.folders)
            or _is_inside(self.wheels, _origin_of(module_name))
        )

    def _is_home(self, module_name: str) -> bool:
        file = getattr(sys.modules.get(module_name), "__file__", None)
        return _is_inside([*self.folders, *self.wheels], file) or self._is_named(module_name)

    def _is_named(self, module_name: str) -> bool:
        return any(module_name == allowed or module_name.startswith(f"{allowed}.") for allowed in self.modules)

    def _import(self, module_name: str) -> ModuleType:
        place = next((found for folder in self.folders if (found := _find(folder, module_name))), module_name)
        try:
            return import_file(place) if isinstance(place, Path) else importlib.import_module(place)
        except (Exception, SystemExit) as error:
            details = f" ({type(error).__name__}: {error})"
            raise FlowBroken(f"module {module_name} cannot be imported", details) from error


class _Offers:
    """Collects the tasks that plug-ins register, and the errors of plug-ins that fail."""

    def __init__(self) -> None:
        self.tasks: dict[str, Task] = {}
        self.failed: dict[str, BaseException] = {}

    def add(self, entry: EntryPoint) -> None:
        try:
            entry.load()(PluginRegistry(self, entry.name))
        except (Exception, SystemExit) as error:  # noqa: BLE001 - one bad plug-in must not hide the others
            self.failed[entry.name] = error

    def _register_task(self, name: str, task: Task) -> None:
        """Called by Pyoco's registry."""
        self.tasks.setdefault(name, task)


def _is_inside(folders: Iterable[Path], file: str | None) -> bool:
    return file is not None and any(Path(file).is_relative_to(folder) for folder in folders)


def _origin_of(module_name: str) -> str | None:
    """The file that an import of the module would execute first, found without importing anything."""
    top, *below = module_name.split(".")
    path: Sequence[str] | None = None
    name = top
    while (spec := PathFinder.find_spec(name, path)) is not None:
        if spec.origin is not None or not below:
            return spec.origin
        # A namespace package: which distribution it is depends on the next part of the name.
        name, path = f"{name}.{below.pop(0)}", list(spec.submodule_search_locations or [])
    return None


def _find(folder: Path, module_name: str) -> Path | str | None:
    """The file, or the name to import, if the folder has this module; the folder's name may be its first part."""
    for name in (module_name, module_name.removeprefix(f"{folder.name}.")):
        top, _, below = name.partition(".")
        # os.path, as it returns False for a name that no file can have.
        if not below and os.path.isfile(file := folder / f"{top}.py"):
            return file
        if os.path.isdir(folder / top) and comes_from(folder, top):
            return name
    return None
