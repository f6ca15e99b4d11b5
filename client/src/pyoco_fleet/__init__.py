"""The Python client of pyoco-fleet: `Fleet`, `AsyncFleet`, and the HTTP clients behind them. Loads what is used."""

from importlib import import_module

# `typing` costs a third of the time in which the command line shows its help.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .async_fleet import AsyncFleet
    from .async_runs import AsyncRun, AsyncRunGroup
    from .errors import (
        BadAnswer,
        BadRequest,
        Conflict,
        FleetError,
        FlowFailed,
        Forbidden,
        NotAuthenticated,
        NotFound,
        ResultTooLarge,
        RunCancelled,
        RunEnded,
        Unavailable,
        Unreachable,
        WaitTimeout,
    )
    from .fleet import Fleet
    from .http_client import AsyncPyocoHttpClient, PyocoHttpClient
    from .runs import Run, RunGroup
    from .transport import Retries
    from .typed_params import params_of

__all__ = [
    "AsyncFleet",
    "AsyncPyocoHttpClient",
    "AsyncRun",
    "AsyncRunGroup",
    "BadAnswer",
    "BadRequest",
    "Conflict",
    "Fleet",
    "FleetError",
    "FlowFailed",
    "Forbidden",
    "NotAuthenticated",
    "NotFound",
    "PyocoHttpClient",
    "ResultTooLarge",
    "Retries",
    "Run",
    "RunCancelled",
    "RunEnded",
    "RunGroup",
    "Unavailable",
    "Unreachable",
    "WaitTimeout",
    "params_of",
]

# The modules of all names but the errors.
_HOMES = {
    "AsyncFleet": "async_fleet",
    "AsyncPyocoHttpClient": "http_client",
    "AsyncRun": "async_runs",
    "AsyncRunGroup": "async_runs",
    "Fleet": "fleet",
    "PyocoHttpClient": "http_client",
    "Retries": "transport",
    "Run": "runs",
    "RunGroup": "runs",
    "params_of": "typed_params",
}


def __getattr__(name: str) -> "Any":
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_HOMES.get(name, 'errors')}", __name__), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
