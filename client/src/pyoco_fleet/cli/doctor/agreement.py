"""Judges whether clocks and versions agree."""

import re
import time
from collections.abc import Iterable
from email.utils import parsedate_to_datetime
from importlib.metadata import PackageNotFoundError, version

from ..texts import t
from ..times import duration
from .finding import Findings
from .parts import reason_of
from .replies import Replies

_WARNING_SECONDS = 5.0
_PROBLEM_SECONDS = 60.0
# A heartbeat is at most this old when it is shown.
_HEARTBEAT_SECONDS = 30.0
_BUILD = re.compile(r'^pyoco_build_info\{(?=[^}]*component="runs-api")[^}]*version="([^"]+)"', re.MULTILINE)


def judge_clock(found: Findings, replies: Replies) -> None:
    measured = _by_date(replies) or _by_heartbeats(replies)
    if measured is None:
        found.unseen("clock", t("doctor.clock.no_time"))
        return
    ahead, unsure = measured
    off = max(abs(ahead) - unsure, 0.0)
    values = {"off": duration(abs(ahead)), "unsure": duration(unsure)}
    key = "ahead" if ahead > 0 else "behind"
    if off >= _PROBLEM_SECONDS:
        found.problem("clock", f"clock.{key}", t("doctor.clock.advice"), **values)
    elif off >= _WARNING_SECONDS:
        found.warning("clock", f"clock.{key}", t("doctor.clock.advice"), **values)
    else:
        found.ok("clock", "clock.agrees", within=duration(max(abs(ahead) + unsure, 1.0)))


def _by_date(replies: Replies) -> tuple[float, float] | None:
    """How far this machine's clock is ahead of the gateway's, and how exactly that is known, in seconds."""
    for reply in replies.of.values():
        try:
            said = parsedate_to_datetime(reply.headers.get("date", "")).timestamp()
        except ValueError:
            continue
        # The header has whole seconds.
        return reply.at - (said + 0.5), 0.5 + reply.seconds / 2
    return None


def _by_heartbeats(replies: Replies) -> tuple[float, float] | None:
    beats = [worker["last_seen_at"] for worker in replies.live_workers]
    return (time.time() - max(beats) - _HEARTBEAT_SECONDS / 2, _HEARTBEAT_SECONDS / 2) if beats else None


def judge_versions(found: Findings, replies: Replies) -> None:
    versions = {t("doctor.versions.client"): _own_version()}
    metrics = replies["metrics"]
    if metrics.error is None and (build := _BUILD.search(metrics.value)):
        versions["runs-api"] = build[1]
    for worker in replies.details:
        machine = worker.get("machine") or {}
        if machine.get("fleet_version"):
            versions[worker["worker_id"]] = machine["fleet_version"]
    if len(set(versions.values())) > 1:
        found.warning("versions", "versions.differ", t("doctor.versions.advice"), versions=_grouped(versions.items()))
    elif "runs-api" in versions:
        found.ok("versions", "versions.agree", version=versions["runs-api"], workers=len(versions) - 2)
    else:
        why, advice = reason_of(found, metrics, "metrics") if metrics.error else (t("doctor.nobody_said"), None)
        found.unseen("versions", why, advice)


def _own_version() -> str:
    try:
        return version("pyoco-fleet-client")
    except PackageNotFoundError:
        return "-"


def _grouped(versions: Iterable[tuple[str, str]]) -> str:
    by_version: dict[str, list[str]] = {}
    for name, number in versions:
        by_version.setdefault(number, []).append(name)
    return "; ".join(f"{number}: {', '.join(names[:5])}" for number, names in sorted(by_version.items()))
