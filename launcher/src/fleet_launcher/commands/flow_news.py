"""Finds what workers have logged about their flows: reloads, edits that are broken, libraries that are installed."""

import json
from collections.abc import Iterable
from dataclasses import dataclass

from fleet_contracts.log_events import LogEvent
from fleet_kit.logs.text import visible

from ..data_dir.folder import DataFolder
from ..logs.files import Tail

_ABOUT_FLOWS = (
    LogEvent.FLOWS_RELOADED,
    LogEvent.FLOWS_RELOAD_FAILED,
    LogEvent.FLOWS_BROKEN,
    LogEvent.FLOW_LIBRARIES,
)
_SHOWN_CHARACTERS = 1000


@dataclass(frozen=True, slots=True)
class FlowNews:
    part: str
    event: str
    text: str
    is_error: bool


class FlowNewsReader:
    """Reads what is written into the logs of these parts from now on."""

    def __init__(self, folder: DataFolder, parts: Iterable[str]) -> None:
        self._tails = {part: Tail.at_end(folder.log(part)) for part in parts}

    def new(self) -> list[FlowNews]:
        lines = ((part, line) for part, tail in self._tails.items() for line in tail.new_lines())
        return [news for part, line in lines if (news := _news_of(part, line)) is not None]


def _news_of(part: str, line: str) -> FlowNews | None:
    try:
        fields = json.loads(line)
        event, text = fields["event"], fields["message"]
        if event not in _ABOUT_FLOWS:
            return None
        if "exc_type" in fields:
            text += f" ({fields['exc_type']}: {fields.get('exc_message', '')})"
        return FlowNews(part, event, visible(text)[:_SHOWN_CHARACTERS], fields["level"] in ("ERROR", "CRITICAL"))
    except (ValueError, KeyError, TypeError):
        return None
