"""Parses the lifetime of a key: 30d, 12h, or a date."""

import re
from datetime import UTC, datetime

_SPAN = re.compile(r"(?P<number>[0-9]{1,6})(?P<unit>[smhdw])")
_LONGEST_SECONDS = 100 * 365 * 86400.0
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}


def end_of_life(text: str, *, now: float) -> float:
    """When a key expires, in unix seconds; ValueError if it cannot. A date without a time zone is in UTC."""
    if found := _SPAN.fullmatch(text.strip()):
        end = now + int(found["number"]) * _SECONDS[found["unit"]]
    else:
        try:
            moment = datetime.fromisoformat(text.strip())
        except ValueError:
            raise ValueError(f"{text!r} is neither a span such as 30d or 12h nor a date such as 2030-12-31") from None
        end = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    if end <= now:
        raise ValueError(f"{text!r} has passed already")
    if end - now > _LONGEST_SECONDS:
        raise ValueError(f"{text!r} is more than a hundred years; leave it out for a key that does not expire")
    return end


def shown(moment: float | None) -> str:
    return "–" if moment is None else datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%d %H:%M UTC")
