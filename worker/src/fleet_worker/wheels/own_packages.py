"""The packages and modules of the worker itself, which no wheel may replace."""

import sys
from collections.abc import Iterable
from functools import cache
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import PurePosixPath

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

_WORKER = "pyoco-fleet-worker"
# An editable install does not list these among its files.
_OUR_MODULES = ("fleet_contracts", "fleet_kit", "fleet_worker")
_CODE = (".py", ".so", ".pyd")


@cache
def own_packages() -> dict[str, str]:
    """The worker and everything it requires, with versions."""
    return {name: found.version for name, found in _installed().items()}


@cache
def own_roots() -> frozenset[str]:
    """The roots of the worker's own packages and of Python's standard library, as paths; see `roots_of`."""
    files = [str(file) for found in _installed().values() for file in found.files or []]
    return roots_of(files) | set(_OUR_MODULES) | sys.stdlib_module_names


def roots_of(files: Iterable[str]) -> frozenset[str]:
    """The outermost packages with an __init__, and modules outside of any package: all that an import can find.

    A folder without an __init__ (a namespace package) may be shared between packages: only what is inside counts.
    """
    code = [PurePosixPath(file) for file in files if file.endswith(_CODE) and not file.startswith(("..", "/"))]
    packages = {path.parent for path in code if path.name == "__init__.py"}
    roots = set()
    for path in code:
        above = [parent for parent in reversed(path.parents) if parent in packages]
        roots.add(str(above[0]) if above else str(path.parent / path.name.partition(".")[0]))
    return frozenset(roots)


def first_clash(roots: Iterable[str], others: Iterable[str]) -> str | None:
    """A root that would hide one of the others, or would be hidden by it."""
    taken = set(others)
    # A package hides everything below it.
    inside = {str(parent) for other in taken for parent in PurePosixPath(other).parents}
    for root in sorted(roots):
        above = {str(parent) for parent in PurePosixPath(root).parents}
        if root in taken or root in inside or above & taken:
            return root
    return None


@cache
def _installed() -> dict[str, Distribution]:
    found: dict[str, Distribution] = {}
    wanted = [Requirement(_WORKER)]
    while wanted:
        requirement = wanted.pop()
        name = canonicalize_name(requirement.name)
        try:
            package = found.get(name) or distribution(name)
        except PackageNotFoundError:
            continue  # optional, and not there
        is_new = name not in found
        found[name] = package
        if is_new or requirement.extras:
            wanted += _required_by(package, requirement.extras)
    return found


def _required_by(package: Distribution, extras: set[str]) -> list[Requirement]:
    required = []
    for line in package.requires or []:
        try:
            requirement = Requirement(line)
        except InvalidRequirement:
            continue
        marker = requirement.marker
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in extras or {""}):
            required.append(requirement)
    return required
