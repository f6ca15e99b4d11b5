"""Masks the values of secrets in everything that leaves a runner."""

import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, TypeVar
from urllib.parse import quote

import orjson

from .frames import Conclusion, Frame, Progress, Ready

_Records = TypeVar("_Records", dict[str, Any], dict[str, Any] | None)
_INSTEAD = "***"
# Shorter values would mask words that are no secrets.
_SHORTEST = 4
# What tasks and iterations have in their records from the flow.
_OF_THE_FLOW = ("inputs", "output", "error", "traceback", "artifacts", "item")
# Words of a JSON Schema: with names below them; that only tell; that values have to match.
_NAMED_SCHEMAS = ("properties", "$defs")
_SHOWN = ("default", "description", "title", "examples")
_ADMITTING = ("const", "enum", "pattern")


class Secrets:
    """Without secrets all methods return what they were given."""

    def __init__(self) -> None:
        self._pattern: re.Pattern[str] | None = None
        self._longest = 0

    def set(self, values: Iterable[str]) -> None:
        stripped = (value.strip() for value in values)
        forms = {form for value in stripped if len(value) >= _SHORTEST for form in _forms_of(value)}
        # The longest first: one secret may begin with another.
        found = sorted(forms, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, found))) if found else None
        self._longest = len(found[0]) if found else 0

    def mask(self, text: str) -> str:
        return text if self._pattern is None else self._pattern.sub(_INSTEAD, text)

    def beginning(self, text: str, characters: int) -> str:
        """The beginning of a text, masked; a secret that the cut would tear is masked as a whole."""
        if self._pattern is not None:
            for found in self._pattern.finditer(text[: characters + self._longest]):
                if found.start() < characters < found.end():
                    characters = found.end()
        return self.mask(text[:characters])

    def mask_bytes(self, data: bytes) -> bytes:
        if self._pattern is None:
            return data
        return self.mask(data.decode(errors="surrogateescape")).encode(errors="surrogateescape")

    def mask_value(self, value: Any) -> Any:
        """A value that orjson can represent, masked wherever it is nested."""
        if self._pattern is None:
            return value
        return self._masked(orjson.loads(orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS)))

    def mask_records(self, records: _Records) -> _Records:
        """Task records; what the fleet itself has written into them stays as it is."""
        if self._pattern is None or records is None:
            return records
        return {task: self._record(record) for task, record in records.items()}

    def mask_catalogue(self, catalogue: dict[str, Any]) -> dict[str, Any]:
        """The JSON form of a catalogue; the names of flows, params and places stay as they are."""
        if self._pattern is None or not catalogue:
            return catalogue
        broken = [{**one, "message": self.mask(one["message"])} for one in catalogue["broken"]]
        return {**catalogue, "flows": [self._offer(offer) for offer in catalogue["flows"]], "broken": broken}

    def mask_frame(self, frame: Frame) -> Frame:
        if self._pattern is None:
            return frame
        match frame:
            case Ready():
                broken = {file: self._fields(failure) for file, failure in frame.broken.items()}
                catalogue = self.mask_catalogue(frame.catalogue)
                return replace(frame, broken=broken, error=self._text(frame.error), catalogue=catalogue)
            case Progress():
                records = self.mask_records(frame.task_records)
                return replace(frame, events=self._events(frame.events), task_records=records)
            case Conclusion():
                failures = {task: self._fields(failure) for task, failure in frame.task_failures.items()}
                return replace(
                    frame,
                    error=self._text(frame.error),
                    task_records=self.mask_records(frame.task_records),
                    result=self.mask_value(frame.result),
                    failure=self._fields(frame.failure) if frame.failure is not None else None,
                    task_errors=self._fields(frame.task_errors),
                    task_failures=failures,
                    events=self._events(frame.events),
                )
        return frame

    def _record(self, record: dict[str, Any]) -> dict[str, Any]:
        masked = {key: self.mask_value(value) if key in _OF_THE_FLOW else value for key, value in record.items()}
        if "iterations" in masked:
            masked["iterations"] = [self._record(one) for one in masked["iterations"]]
        return masked

    def _offer(self, offer: dict[str, Any]) -> dict[str, Any]:
        graph = offer["graph"]
        if graph is not None:
            graph = {**graph, "edges": [{**edge, "label": self._text(edge["label"])} for edge in graph["edges"]]}
        description, schema = self._text(offer["description"]), self._schema(offer["params_schema"])
        return {**offer, "description": description, "params_schema": schema, "graph": graph}

    def _schema(self, schema: Any) -> Any:
        """A JSON Schema, which still admits the same values, or more."""
        if isinstance(schema, list):
            return [self._schema(one) for one in schema]
        if not isinstance(schema, dict):
            return schema
        masked: dict[str, Any] = {}
        for word, value in schema.items():
            if word in _NAMED_SCHEMAS:
                masked[word] = {name: self._schema(one) for name, one in value.items()}
            elif word in _SHOWN:
                masked[word] = self._masked(value)
            elif word not in _ADMITTING:
                masked[word] = self._schema(value)
            elif self._masked(value) == value:
                masked[word] = value
        return masked

    def _text(self, text: str | None) -> str | None:
        return None if text is None else self.mask(text)

    def _fields(self, fields: dict[str, str]) -> dict[str, str]:
        return {name: self.mask(text) for name, text in fields.items()}

    def _events(self, events: list[dict[str, Any]]) -> list[dict[str, Any]]:
        # Once more: several writes are sent as one text.
        return [{**event, "text": self.mask(event["text"])} if "text" in event else event for event in events]

    def _masked(self, value: Any) -> Any:
        match value:
            case str():
                return self.mask(value)
            case list():
                return [self._masked(item) for item in value]
            case dict():
                return {self.mask(key): self._masked(item) for key, item in value.items()}
            case int() | float() if not isinstance(value, bool) and self.mask(str(value)) != str(value):
                return _INSTEAD
        return value


def _forms_of(value: str) -> set[str]:
    """As it is, and as it appears in a repr, in JSON, in a URL."""
    return {value, repr(value)[1:-1], orjson.dumps(value).decode()[1:-1], quote(value, safe="")}


# Those of this process, which has one environment.
SECRETS = Secrets()
