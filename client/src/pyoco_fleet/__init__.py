"""The Python client of pyoco-fleet: `Fleet`, `AsyncFleet`, and the HTTP clients behind them. Loads what is used."""

from importlib import import_module

# `typing` costs a third of the time in which the command line shows its help.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .async_fleet import AsyncFleet as AsyncFleet
    from .async_runs import AsyncRun as AsyncRun
    from .async_runs import AsyncRunGroup as AsyncRunGroup
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
    from .fleet import Fleet as Fleet
    from .http_client import AsyncPyocoHttpClient as AsyncPyocoHttpClient
    from .http_client import PyocoHttpClient as PyocoHttpClient
    from .runs import Run as Run
    from .runs import RunGroup as RunGroup
    from .transport import Retries as Retries
    from .typed_params import params_of as params_of

_HOME = {
    "AsyncFleet": "async_fleet",
    "AsyncRun": "async_runs",
    "AsyncRunGroup": "async_runs",
    "Fleet": "fleet",
    "Run": "runs",
    "RunGroup": "runs",
    "params_of": "typed_params",
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


def __getattr__(name: str) -> "Any":
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_HOME[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
