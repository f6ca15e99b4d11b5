"""Errors for scripts that were written for pyoco-server: they catch those of httpx, which they import themselves."""

import functools
import sys
from typing import Any

from .calls import Answer
from .errors import FleetError


def as_scripts_expect(error: FleetError, method: str, url: str, came: Answer | str) -> FleetError:
    """The same error, also as an exception of httpx if the script has imported it.

    `came` is the answer, or the name of what happened to the connection.
    """
    httpx: Any = sys.modules.get("httpx")
    if httpx is None:
        return error
    is_answer = isinstance(came, Answer)
    cause = httpx.HTTPStatusError if is_answer else getattr(httpx, str(came), httpx.TransportError)
    own: Any = type(error)
    kind = _both(own, cause)
    same: FleetError = kind.__new__(kind, *error.args)
    same.args = error.args
    vars(same).update(vars(error))
    request = httpx.Request(method, url)
    setattr(same, "request", request)  # noqa: B010
    if isinstance(came, Answer):
        # The body is decoded already.
        plain = {name: value for name, value in came.headers.items() if name.lower() != "content-encoding"}
        setattr(same, "response", httpx.Response(came.status, headers=plain, content=came.body, request=request))  # noqa: B010
    return same


@functools.cache
def _both(kind: Any, cause: Any) -> Any:
    # Another process that reads it from a pickle has not imported httpx.
    said = {"__module__": kind.__module__, "__doc__": kind.__doc__, "__reduce__": lambda self: _plain(kind, self)}
    return type(kind.__name__, (kind, cause), said)


def _plain(kind: type[FleetError], error: FleetError) -> tuple[Any, ...]:
    own = {name: value for name, value in vars(error).items() if name not in ("response", "request", "_request")}
    return kind, error.args, own
