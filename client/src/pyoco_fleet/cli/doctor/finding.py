"""One thing that was looked at, and how it is."""

from dataclasses import dataclass
from typing import Any, Literal

from ..session import Session
from ..texts import t

Status = Literal["ok", "warning", "problem"]


@dataclass(frozen=True)
class Finding:
    check: str
    status: Status
    sentence: str
    # A command, or what else one can do.
    advice: str | None = None
    # False: it could not be looked at, so nothing is known about it.
    seen: bool = True


class Findings:
    """Collects findings under their checks."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.all: list[Finding] = []

    def ok(self, check: str, key: str, **values: Any) -> None:
        self.all.append(Finding(check, "ok", t(f"doctor.{key}", **values)))

    def warning(self, check: str, key: str, advice: str | None = None, **values: Any) -> None:
        self.all.append(Finding(check, "warning", t(f"doctor.{key}", **values), advice))

    def problem(self, check: str, key: str, advice: str | None = None, **values: Any) -> None:
        self.all.append(Finding(check, "problem", t(f"doctor.{key}", **values), advice))

    def unseen(self, check: str, why: str, advice: str | None = None) -> None:
        self.all.append(Finding(check, "warning", t("doctor.unseen", why=why), advice, seen=False))
