"""Moments and durations: as people write them on the command line, and as they read them."""

import re
import time
from datetime import datetime, timedelta

from .errors import InvalidArgument
from .texts import t

_AGO = re.compile(r"(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>s|m|min|h|d|w)(?:\s+ago)?", re.IGNORECASE)
_EIGHT_DIGITS = re.compile(r"\d{8}")
_SECONDS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400, "w": 604800}
_MINUTE, _HOUR, _DAY = 60.0, 3600.0, 86400.0


def moment(
    text: str, option: str, *, example: str | None = None, ahead: bool = False, now: float | None = None
) -> float:
    """Unix seconds of `yesterday`, `today`, `2h`, `3d ago`, a date, a time in ISO 8601, or unix seconds.

    Without an offset it is local time. With `ahead`, `2h` is in two hours.
    """
    present = datetime.fromtimestamp(time.time() if now is None else now)
    midnight = present.replace(hour=0, minute=0, second=0, microsecond=0)
    word = text.strip().lower()
    if word in ("now", "today", "yesterday"):
        return {"now": present, "today": midnight, "yesterday": midnight - timedelta(days=1)}[word].timestamp()
    ago = _AGO.fullmatch(word)
    if ago is not None:
        length = float(ago["number"]) * _SECONDS[ago["unit"]]
        return present.timestamp() + (length if ahead and not word.endswith("ago") else -length)
    # Eight digits could be a date as well, as the server finds.
    if re.fullmatch(r"\d+(\.\d+)?", word) and not _EIGHT_DIGITS.fullmatch(word):
        return float(word)
    try:
        if _EIGHT_DIGITS.fullmatch(word):
            raise ValueError(word)
        return datetime.fromisoformat(text.strip()).timestamp()
    except (ValueError, OverflowError):
        key = "usage.moment_ahead" if ahead else "usage.moment"
        raise InvalidArgument(t(key, option=option, value=text), example) from None


def seconds(text: str, option: str, example: str | None = None) -> float:
    """Seconds of `90`, `90s`, `15m`, `2h`, `90d`."""
    span = _AGO.fullmatch(text.strip().lower())
    if span is not None:
        return float(span["number"]) * _SECONDS[span["unit"]]
    try:
        return float(text)
    except ValueError:
        raise InvalidArgument(t("usage.duration", option=option, value=text), example) from None


def duration(length: float | None) -> str:
    """`12 ms`, `1.2 s`, `3 min 5 s`, `2 h 3 min`, `4 d 1 h`."""
    if length is None:
        return "–"
    length = max(0.0, length)
    if length < 0.001:
        return "<1 ms"
    if length < 1:
        return f"{length * 1000:.0f} ms"
    if length < _MINUTE:
        return f"{length:.1f} s"
    if length < _HOUR:
        return f"{length // _MINUTE:.0f} min {length % _MINUTE:.0f} s"
    if length < _DAY:
        return f"{length // _HOUR:.0f} h {length % _HOUR // _MINUTE:.0f} min"
    return f"{length // _DAY:.0f} d {length % _DAY // _HOUR:.0f} h"


def ago(at: float | None, *, now: float | None = None) -> str:
    """`3 s ago`, `in 5 min`; – for no moment."""
    if at is None:
        return "–"
    passed = (time.time() if now is None else now) - at
    if abs(passed) < 1:
        return t("time.now")
    for limit, unit, key in ((_MINUTE, 1.0, "s"), (_HOUR, _MINUTE, "min"), (_DAY, _HOUR, "h"), (1e18, _DAY, "d")):
        # A key of 90 days that was just made expires in 90 days, not in 89.
        length = passed if passed > 0 else round(-passed / unit) * unit
        if length < limit:
            span = t(f"time.{key}", count=f"{length // unit:.0f}")
            return t("time.ago" if passed > 0 else "time.in", span=span)
    return "–"


def clock(at: float | None) -> str:
    """The local date and time."""
    return "–" if at is None else datetime.fromtimestamp(at).strftime("%Y-%m-%d %H:%M:%S")
