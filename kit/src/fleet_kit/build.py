"""The release of the running build."""

from functools import cache
from importlib.metadata import PackageNotFoundError, version


@cache
def release() -> str:
    try:
        return version("pyoco-fleet-kit")
    except PackageNotFoundError:
        return "unknown"
