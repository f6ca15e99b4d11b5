"""The Python client of pyoco-fleet: `Fleet`, `AsyncFleet`, and the HTTP clients behind them. Loads what is used."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .errors import (
        BadAnswer as BadAnswer,
    )
    from .errors import (
        BadRequest as BadRequest,
    )
    from .errors import (
        Conflict as Conflict,
    )
    from .errors import (
        FleetError as FleetError,
    )
    from .errors import (
        FlowFailed as FlowFailed,
    )
    from .errors import (
        Forbidden as Forbidden,
    )
    from .errors import (
        NotAuthenticated as NotAuthenticated,
    )
    from .errors import (
        NotFound as NotFound,
    )
    from .errors import (
        RunCancelled as RunCancelled,
    )
    from .errors import (
        RunEnded as RunEnded,
    )
    from .errors import (
        Unavailable as Unavailable,
    )
    from .errors import (
        Unreachable as Unreachable,
    )
    from .errors import (
        WaitTimeout as WaitTimeout,
    )
    from .http_client import AsyncPyocoHttpClient as AsyncPyocoHttpClient
    from .http_client import PyocoHttpClient as PyocoHttpClient
    from .transport import Retries as Retries

_HOME = {
    "AsyncPyocoHttpClient": "http_client",
    "PyocoHttpClient": "http_client",
    "Retries": "transport",
} | dict.fromkeys(
    (
        "BadAnswer",
        "BadRequest",
        "Conflict",
        "FleetError",
        "FlowFailed",
        "Forbidden",
        "NotAuthenticated",
        "NotFound",
        "RunCancelled",
        "RunEnded",
        "Unavailable",
        "Unreachable",
        "WaitTimeout",
    ),
    "errors",
)

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_HOME[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
