"""Finds the timestamps of log lines in every format: JSON, the text format, NATS's or nginx's own."""

import json
import re
from collections.abc import Sequence
from datetime import datetime

# [3021] 2026/11/16 13:40:30.123456 [INF] of NATS, 2026/11/16 13:40:30 [warn] of nginx: in local time.
_DATED = re.compile(r"(?:\[\d+\] )?(\d{4}/\d\d/\d\d \d\d:\d\d:\d\d)(\.\d+)? \[")
# 14:58:28.891 INFO … of the text format: in local time, without a date.
_OF_A_DAY = re.compile(r"(\d\d):(\d\d):(\d\d\.\d{3}) [A-Z]+ ")
_DAY_SECONDS = 24 * 60 * 60
# Lines may be out of order by this much, because several processes write into one log.
_DISORDER_SECONDS = 60
_UNKNOWN = float("-inf")


def times_of(lines: Sequence[str], *, before: float) -> list[float]:
    """Unix times of the lines of one log; the last line was written at `before`.

    A line without a timestamp (of a traceback, say) gets that of the line above it.
    """
    times: list[float | None] = []
    for line in reversed(lines):
        at = _time_of(line, near=before)
        times.append(at)
        before = before if at is None else at
    times.reverse()
    known = next((at for at in times if at is not None), _UNKNOWN)
    filled = []
    for at in times:
        known = known if at is None else at
        filled.append(known)
    return filled


def _time_of(line: str, *, near: float) -> float | None:
    if line.startswith("{"):
        try:
            return datetime.fromisoformat(json.loads(line)["ts"]).timestamp()
        except (ValueError, KeyError, TypeError):
            return None
    if dated := _DATED.match(line):
        return datetime.strptime(dated[1], "%Y/%m/%d %H:%M:%S").astimezone().timestamp() + float(dated[2] or 0)
    if found := _OF_A_DAY.match(line):
        midnight = datetime.fromtimestamp(near).astimezone().replace(hour=0, minute=0, second=0, microsecond=0)
        at = midnight.timestamp() + int(found[1]) * 3600 + int(found[2]) * 60 + float(found[3])
        # Lines are in order: one that would be later than the line after it is of the day before.
        return at if at - near < _DISORDER_SECONDS else at - _DAY_SECONDS
    return None
