"""The Python files of a flows folder: which ones are read, how they are imported, and on which line something is."""

import ast
import importlib
import importlib.util
import os
import sys
import traceback
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType

from fleet_contracts.catalogue import BrokenSource
from fleet_kit.logs.json_values import describe

# A subfolder with one of these is a project or an environment of its own.
_MARKS = ("pyvenv.cfg", "pyproject.toml", "setup.py", "requirements.txt")
_PACKAGE = "__init__.py"
_MOST_CHARACTERS = 2000


def source_files(folder: Path) -> Iterator[Path]:
    """The *.py files of the folder and its subfolders, those of a folder before those of its subfolders."""
    for place, subfolders, files in os.walk(folder):
        subfolders[:] = sorted(name for name in subfolders if _is_read(Path(place, name)))
        for name in sorted(files):
            is_package = name == _PACKAGE and Path(place) != folder
            if name.endswith(".py") and (is_package or not name.startswith(("_", "."))):
                yield Path(place, name)


def _is_read(subfolder: Path) -> bool:
    return not subfolder.name.startswith(("_", ".")) and not any((subfolder / mark).exists() for mark in _MARKS)


def import_source(file: Path, folder: Path) -> ModuleType:
    """Import a file of the folder, which is on `sys.path`: `etl/orders.py` as `etl.orders`.

    When a library has the name of a file or of a subfolder, ours is imported under a longer one: a neighbour's
    `import json` must mean the library.
    """
    top, *below = file.relative_to(folder).with_suffix("").parts
    if not below:
        return import_file(file)
    if any("." in name for name in (top, *below)):
        return _import_as(f"pyoco_flows_{'_'.join((top, *below))}", file)
    if below[-1] == "__init__":
        below.pop()
    if not comes_from(folder, top):
        top = _alias_of(folder / top)
    return importlib.import_module(".".join((top, *below)))


def import_file(file: Path) -> ModuleType:
    """Import a file under its own name, or under a longer one when a library has that name; once."""
    found = importlib.util.find_spec(file.stem) if file.stem.isidentifier() else None
    if found is not None and found.origin is not None and Path(found.origin).resolve() == file.resolve():
        return importlib.import_module(file.stem)
    return _import_as(f"pyoco_flows_{file.stem}", file)


def comes_from(folder: Path, package: str) -> bool:
    """Whether an import finds the package in this folder: a library of the same name would take precedence."""
    try:
        spec = importlib.util.find_spec(package)
    except ValueError:
        return False
    places = spec.submodule_search_locations if spec is not None else None
    return [Path(place) for place in places or []] == [folder / package]


def _alias_of(subfolder: Path) -> str:
    """The subfolder as a package of another name."""
    alias = f"pyoco_flows_{subfolder.name}"
    if alias not in sys.modules:
        if (file := subfolder / _PACKAGE).exists():
            _import_as(alias, file, is_package=True)
        else:
            sys.modules[alias] = package = ModuleType(alias)
            package.__path__ = [str(subfolder)]
    return alias


def _import_as(name: str, file: Path, *, is_package: bool = False) -> ModuleType:
    places = [str(file.parent)] if is_package else None
    spec = importlib.util.spec_from_file_location(name, file, submodule_search_locations=places)
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


@cache
def assigned_lines(file: Path) -> dict[str, int]:
    """The lines on which the file makes its module-level values; what it only imports is not among them."""
    lines: dict[str, int] = {}
    for statement in ast.parse(file.read_bytes()).body:
        if isinstance(statement, ast.Assign | ast.AnnAssign) and any(
            isinstance(part, ast.Call) for part in ast.walk(statement)
        ):
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            lines |= {target.id: statement.lineno for target in targets if isinstance(target, ast.Name)}
    return lines


def docstring_of(file: Path) -> str | None:
    return ast.get_docstring(ast.parse(file.read_bytes()))


def broken_source(file: Path, folder: Path, error: BaseException) -> BrokenSource:
    """A file that could not be imported; the line is one of this file, the message names another that raised."""
    message = describe(error, str)
    if isinstance(error, SyntaxError) and error.filename is not None:
        # Nothing of that file was executed, so no frame is in it.
        message = str(error.msg)
        raised_in, raised_at = Path(error.filename), error.lineno
        lines = [(raised_in, raised_at)] if raised_in.is_relative_to(folder) else []
    else:
        lines = []
    frames = [(Path(frame.filename), frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
    lines = [place for place in frames if place[0].is_relative_to(folder)] + lines
    line = next((number for place, number in reversed(lines) if place == file), None)
    if lines and lines[-1][0] != file:
        message = f"{message} ({lines[-1][0].relative_to(folder)}, line {lines[-1][1]})"
    if isinstance(error, ModuleNotFoundError) and (neighbour := _neighbour(file, folder, error.name)):
        message = f"{message}; it is in the same subfolder: write `from . import {neighbour}`"
    return BrokenSource(
        place=str(file.relative_to(folder)),
        exc_type=type(error).__name__,
        message=message[:_MOST_CHARACTERS],
        line=line,
    )


def _neighbour(file: Path, folder: Path, missing: str | None) -> str | None:
    """The missing module, if the file's subfolder has it: only the top folder is on `sys.path`."""
    if missing is None or file.parent == folder:
        return None
    places = (file.parent / f"{missing}.py", file.parent / missing / _PACKAGE)
    return missing if any(place.exists() for place in places) else None
