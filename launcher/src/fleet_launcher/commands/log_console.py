"""The console of a stack in the background: logs what a terminal would show."""

import logging
from collections.abc import Sequence

from rich.text import Text

from fleet_contracts.log_events import ErrorCode, LogEvent, LogStatus
from fleet_kit.logs.failures import meta_of_code

from ..data_dir.state import PartPhase, PartState
from .console import Console

# The launcher's logger, not this module's: these are the launcher's own messages.
logger = logging.getLogger("fleet_launcher")


class LogConsole(Console):
    def say(self, text: str) -> None:
        self.plain(Text.from_markup(text).plain.strip())

    def plain(self, text: str) -> None:
        logger.info("%s", text)

    def show_progress(self, parts: Sequence[PartState], changed: PartState | None) -> None:
        if changed is not None:
            self.show_change(changed, changed.state)

    def show_parts(self, parts: Sequence[PartState]) -> None:
        """Nothing to log: the parts are in the state file."""

    def show_flow_news(self, part: str, text: str, *, is_error: bool) -> None:
        """Nothing to log: it is in the worker's log."""

    def show_ready(self, url: str, lines: Sequence[str]) -> None:
        logger.info("ready at %s", url)

    def show_change(self, part: PartState, before: PartPhase) -> None:
        level, status, failure = logging.INFO, LogStatus.COMPLETED, dict[str, object]()
        match part.state:
            case PartPhase.STARTING:
                status = LogStatus.IN_PROGRESS
            case PartPhase.UNHEALTHY:
                level = logging.WARNING
            case PartPhase.RESTARTING:
                level, status = logging.ERROR, LogStatus.FAILED
                failure = meta_of_code(ErrorCode.INTERNAL_ERROR)
        reason = f": {part.reason}" if part.reason else ""
        logger.log(
            level,
            "%s is %s%s",
            part.name,
            part.state,
            reason,
            extra={
                "event": LogEvent.PART_CHANGED,
                "status": status,
                "entity_id": f"part:{part.name}",
                "meta": {"part": part.name, "state": part.state, "pid": part.pid, **failure},
            },
        )
