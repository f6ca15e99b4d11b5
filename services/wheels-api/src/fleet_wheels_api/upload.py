"""Receives an upload: parses the form as a stream and writes its file to an unnamed temporary file."""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from fastapi import Request
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.requests import ClientDisconnect

from fleet_contracts.names import is_tag
from fleet_contracts.wheel import split_tags
from fleet_kit.http.bodies import FORM, require_content_type

from .errors import InvalidUpload, UploadAbandoned, UploadNotKept, WheelTooLarge, shown
from .names import WheelName, parse_name

FIELDS = ("wheel", "tags", "replace")
# Allowance for the form around the file: boundaries, headers of its parts, the other fields.
_FORM_BYTES = 64 * 1024
_LONGEST_FIELD_BYTES = 8 * 1024
_MOST_TAGS = 50
# Buffered in memory before it is written.
_BUFFER_BYTES = 1024 * 1024
_FLAGS = {"": True, "true": True, "1": True, "on": True, "yes": True} | dict.fromkeys(
    ("false", "0", "off", "no"), False
)


@dataclass(frozen=True, slots=True)
class Upload:
    wheel: WheelName
    file: IO[bytes]
    tags: list[str]
    replace: bool


# Called as soon as the file's name is known, before most of the file has arrived.
NameCheck = Callable[[WheelName], Awaitable[None]]


@asynccontextmanager
async def receive(
    request: Request, *, most_bytes: int, folder: Path | None, check_name: NameCheck
) -> AsyncIterator[Upload]:
    """Receive an upload for the duration of the block; its temporary file is removed however the block ends."""
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and int(announced) > most_bytes + _FORM_BYTES:
        raise _too_large(most_bytes)
    try:
        file = await asyncio.to_thread(_nameless_file, folder)
    except OSError as error:
        raise UploadNotKept(f"the upload could not be kept in a temporary file: {error.strerror}") from error
    with file:
        try:
            yield await _read(request, file, most_bytes, check_name)
        except ClientDisconnect as error:
            raise UploadAbandoned() from error


def _nameless_file(folder: Path | None) -> IO[bytes]:
    """A temporary file without a name, so that not even a killed process leaves it behind."""
    return tempfile.TemporaryFile(dir=folder)


async def _read(request: Request, file: IO[bytes], most_bytes: int, check_name: NameCheck) -> Upload:
    form = _Form(_boundary_of(request), most_bytes)
    left = most_bytes + _FORM_BYTES
    wheel: WheelName | None = None
    async for data in request.stream():
        left -= len(data)
        if left < 0:
            raise _too_large(most_bytes)
        form.feed(data)
        if wheel is None and form.file_name is not None:
            wheel = parse_name(form.file_name)
            await check_name(wheel)
        if len(form.held) >= _BUFFER_BYTES:
            await _write(file, form.take())
    form.finish()
    await _write(file, form.take())
    if wheel is None:
        raise InvalidUpload("wheel", "send one file, such as curl -F wheel=@shop-1.0-py3-none-any.whl")
    return Upload(wheel, file, _tags(form.fields.get("tags", "")), _flag(form.fields.get("replace", "")))


async def _write(file: IO[bytes], data: bytes) -> None:
    try:
        await asyncio.to_thread(file.write, data)
        await asyncio.to_thread(file.flush)
    except OSError as error:
        raise UploadNotKept(f"the upload could not be kept in a temporary file: {error.strerror}") from error


class _Form:
    """A streaming parser of the form; it buffers the bytes of the file until they are taken."""

    def __init__(self, boundary: bytes, most_bytes: int) -> None:
        self.fields: dict[str, str] = {}
        self.file_name: str | None = None
        self.held = bytearray()
        self._most_bytes = most_bytes
        self._file_bytes = 0
        self._seen: set[str] = set()
        self._name = ""
        self._is_file = False
        self._value = bytearray()
        self._header = bytearray()
        self._header_value = bytearray()
        self._disposition = b""
        self._ended = False
        callbacks = {
            "on_part_begin": self._on_part_begin,
            "on_header_field": lambda data, start, end: self._header.extend(data[start:end]),
            "on_header_value": lambda data, start, end: self._header_value.extend(data[start:end]),
            "on_header_end": self._on_header_end,
            "on_headers_finished": self._on_headers_finished,
            "on_part_data": self._on_part_data,
            "on_part_end": self._on_part_end,
            "on_end": self._on_end,
        }
        try:
            self._parser = MultipartParser(boundary, callbacks)  # type: ignore[arg-type]
        except FormParserError as error:
            raise InvalidUpload("body", shown(str(error))) from error

    def feed(self, data: bytes) -> None:
        try:
            self._parser.write(data)
        except FormParserError as error:
            raise InvalidUpload("body", f"the form cannot be read: {shown(str(error))}") from error

    def finish(self) -> None:
        if not self._ended:
            raise InvalidUpload("body", "the form ends before its last boundary")

    def take(self) -> bytes:
        data, self.held = bytes(self.held), bytearray()
        return data

    def _on_part_begin(self) -> None:
        self._disposition = b""
        self._value.clear()

    def _on_header_end(self) -> None:
        if bytes(self._header).lower() == b"content-disposition":
            self._disposition = bytes(self._header_value)
        self._header.clear()
        self._header_value.clear()

    def _on_headers_finished(self) -> None:
        _, options = parse_options_header(self._disposition)
        name = options.get(b"name", b"").decode("utf-8", "replace")
        if name not in FIELDS:
            raise InvalidUpload(name or "body", f"this field is not known; known fields: {', '.join(FIELDS)}")
        if name in self._seen:
            raise InvalidUpload(name, "send it once")
        self._seen.add(name)
        self._name, self._is_file = name, name == "wheel"
        if self._is_file != (b"filename" in options):
            raise InvalidUpload(name, "send it as a file" if self._is_file else "send it as a field, not as a file")
        if self._is_file:
            self.file_name = options[b"filename"].decode("utf-8", "replace")

    def _on_part_data(self, data: bytes, start: int, end: int) -> None:
        if self._is_file:
            self._file_bytes += end - start
            if self._file_bytes > self._most_bytes:
                raise _too_large(self._most_bytes)
            self.held += data[start:end]
        else:
            self._value += data[start:end]
            if len(self._value) > _LONGEST_FIELD_BYTES:
                raise InvalidUpload(self._name, f"it has more than {_LONGEST_FIELD_BYTES} bytes")

    def _on_part_end(self) -> None:
        if not self._is_file:
            self.fields[self._name] = self._value.decode("utf-8", "replace")

    def _on_end(self) -> None:
        self._ended = True


def _boundary_of(request: Request) -> bytes:
    require_content_type(request, FORM)
    _, options = parse_options_header(request.headers["content-type"])
    if not options.get(b"boundary"):
        raise InvalidUpload("body", "send multipart/form-data with the file wheel")
    return options[b"boundary"]


def _tags(text: str) -> list[str]:
    """The tags without duplicates, in the given order."""
    tags = list(dict.fromkeys(split_tags(text)))
    if len(tags) > _MOST_TAGS:
        raise InvalidUpload("tags", f"at most {_MOST_TAGS} tags")
    for tag in tags:
        if not is_tag(tag):
            raise InvalidUpload("tags", f"{shown(tag)!r} is no tag: use 1 to 64 letters, digits, _ and -")
    return tags


def _flag(text: str) -> bool:
    flag = _FLAGS.get(text.strip().lower())
    if flag is None:
        raise InvalidUpload("replace", f"{shown(text)!r} is neither true nor false")
    return flag


def _too_large(most_bytes: int) -> WheelTooLarge:
    return WheelTooLarge(
        f"the wheel has more than {most_bytes} bytes; make it smaller, or raise PYOCO_WHEEL_MAX_BYTES",
        limit_bytes=most_bytes,
    )
