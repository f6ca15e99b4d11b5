"""What a command has at hand: its arguments, the client, the output, and how other commands are typed."""

import argparse
import os
import re
from functools import cached_property
from typing import TYPE_CHECKING, Any

from .errors import CommandFailed, InvalidArgument
from .output import Output, wants_colour
from .registry import typed
from .texts import t

if TYPE_CHECKING:
    from ..http_client import PyocoHttpClient

# How the script ./fleet was told which stack is meant.
_DATA_DIR_VARIABLE = "PYOCO_CLIENT_DATA_DIR"
TERMINAL = frozenset({"COMPLETED", "FAILED", "CANCELLED"})
_WHOLE_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_BEGINNING = re.compile(r"[0-9a-f-]{1,36}")
# How many ids an ambiguous beginning is answered with.
_SHOWN_IDS = 8
_ATTEMPTS = 4
# A search passes over runs whose flow or error has the same letters.
_MOST_PAGES = 10


class Session:
    def __init__(self, args: argparse.Namespace, program: str) -> None:
        self.args = args
        self._program = program
        self._of_stack = os.environ.get(_DATA_DIR_VARIABLE, "")
        self.out = Output(getattr(args, "output", None), wants_colour(getattr(args, "no_color", False)))

    @cached_property
    def client(self) -> "PyocoHttpClient":
        from ..config import server
        from ..http_client import PyocoHttpClient
        from ..transport import Retries

        given = {name: getattr(self.args, name, None) for name in ("api_key", "api_key_header", "profile")}
        chosen = server(getattr(self.args, "server", None), **given)
        return PyocoHttpClient(
            chosen.address,
            api_key=chosen.api_key,
            api_key_header=chosen.api_key_header,
            # Somebody sits before it.
            retries=Retries(attempts=_ATTEMPTS),
        )

    def command(self, line: str) -> str:
        """How another command is typed, with the server that this one was given."""
        server = getattr(self.args, "server", None)
        return typed(self._program, line) + (f" --server {server}" if server else self._of_stack)

    @property
    def is_local(self) -> bool:
        """Whether the script ./fleet has started this command, for the stack of this machine."""
        return self._program.endswith("fleet")

    def how_to_get_a_key(self) -> str:
        return t("advice.key_local", options=self._of_stack) if self.is_local else t("advice.key")

    def run_id(self, text: str) -> str:
        """The id that begins like this, if it is only one."""
        given = text.strip()
        if _WHOLE_ID.fullmatch(given.lower()):
            return given.lower()
        if not _BEGINNING.fullmatch(given.lower()):
            raise InvalidArgument(t("run.no_id", value=text), f"{self.args.of_command} 01a1e30e-8505")
        found = self._runs_that_begin_with(given.lower())
        if not found:
            raise CommandFailed(t("run.not_found", prefix=given), "list --limit 5", "ERR-PYOCO-0005")
        if len(found) > 1:
            lines = [f"  {run['run_id']}  {run['flow_name']}  {run['status']}" for run in found[:_SHOWN_IDS]]
            more = [t("run.more")] if len(found) > _SHOWN_IDS else []
            raise CommandFailed("\n".join([t("run.ambiguous", prefix=given), *lines, *more]))
        return str(found[0]["run_id"])

    def _runs_that_begin_with(self, prefix: str) -> list[Any]:
        found: list[Any] = []
        cursor: str | None = ""
        for _ in range(_MOST_PAGES):
            page = self.client.list_runs_vnext(q=prefix, limit=200, cursor=cursor)
            found += [run for run in page["items"] if run["run_id"].startswith(prefix)]
            cursor = page["next_cursor"]
            if cursor is None or len(found) > _SHOWN_IDS:
                break
        return found
