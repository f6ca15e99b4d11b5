"""Wheels: libraries and flows that the workers install."""

from collections.abc import Sequence
from typing import IO, Any

from ..calls import Answer, Call, as_bytes, as_json, given

Json = dict[str, Any]


def list_wheels() -> Call[list[Json]]:
    """Every registered wheel, by name."""
    return Call("GET", "/wheels", as_json)


def list_wheel_history(
    *,
    limit: int | None = None,
    wheel_name: str | None = None,
    action: str | None = None,
    cursor: str | None = None,
) -> Call[list[Json]]:
    """Uploads and deletes, the latest first."""
    return list_wheel_history_page(limit=limit, wheel_name=wheel_name, action=action, cursor=cursor).then(_events)


def list_wheel_history_page(
    *,
    limit: int | None = None,
    wheel_name: str | None = None,
    action: str | None = None,
    cursor: str | None = None,
) -> Call[Json]:
    """The same page by page: `items`, and `next_cursor` for the next page."""
    params = given(limit=limit, wheel_name=wheel_name or None, action=action or None, cursor=cursor)
    return Call("GET", "/wheels/history", _page, params=params)


def upload_wheel(
    *, filename: str, data: bytes | IO[bytes], replace: bool = True, tags: Sequence[str] | None = None
) -> Call[Json]:
    """Register a wheel: its bytes, or a file opened for reading them."""
    form = {"replace": "true" if replace else "false"}
    if named := ",".join(tag.strip() for tag in tags or () if tag.strip()):
        form["tags"] = named
    files = {"wheel": (filename, data, "application/octet-stream")}
    return Call("POST", "/wheels", as_json, form=form, files=files)


def download_wheel(wheel_name: str) -> Call[bytes]:
    """The bytes of a wheel."""
    return Call("GET", "/wheels/{wheel_name}", as_bytes, {"wheel_name": wheel_name})


def delete_wheel(wheel_name: str) -> Call[Json]:
    """Take a wheel out of the registry."""
    return Call("DELETE", "/wheels/{wheel_name}", as_json, {"wheel_name": wheel_name})


def _page(answer: Answer) -> Json:
    return {"items": answer.json(), "next_cursor": answer.headers.get("x-next-cursor")}


def _events(page: Json) -> list[Json]:
    return list(page["items"])
