"""`doctor`: what is wrong with the fleet, and what one can do about it."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from ..output import printable
from ..parser import CommandParser, add_output
from ..session import Session
from ..texts import t

if TYPE_CHECKING:
    from ..doctor.finding import Finding

_COLOURS = {"ok": "green", "warning": "yellow", "problem": "bold red"}


def add_doctor(parser: CommandParser) -> None:
    parser.add_argument("--json", action="store_const", const="json", dest="output", help=t("doctor.json"))
    add_output(parser, "status")


def doctor(session: Session) -> int:
    from ..doctor.examination import examine

    found = asyncio.run(examine(session))
    problems = [finding for finding in found if finding.status == "problem"]
    answer = {
        "ok": not problems,
        "server": session.client.server.url,
        "findings": [asdict(finding) for finding in found],
    }
    session.out.show(
        answer, lambda: _show(session, found), lambda: [f"{finding.status}\t{finding.check}" for finding in found]
    )
    return 1 if problems else 0


def _show(session: Session, found: "Sequence[Finding]") -> None:
    counts = Counter(finding.status for finding in found)
    total = t("doctor.total", problems=counts["problem"], warnings=counts["warning"])
    if not session.out.is_terminal:
        for finding in found:
            session.out.line(f"{t(f'doctor.{finding.status}'):<8} {finding.check:<12} {finding.sentence}")
            if finding.advice:
                session.out.line(f"{'':<21} -> {finding.advice}")
        session.out.line(total)
        return
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 2))
    for finding in found:
        said = Text(printable(finding.sentence))
        if finding.advice:
            said.append(f"\n→ {printable(finding.advice)}", style="cyan")
        state = Text(t(f"doctor.{finding.status}"), style=_COLOURS[finding.status])
        grid.add_row(state, Text(finding.check, style="bold"), said)
    console = session.out.console()
    console.print(grid)
    console.print(total, style="dim", markup=False, highlight=False)
