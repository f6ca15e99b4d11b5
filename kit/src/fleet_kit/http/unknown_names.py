"""The error sentence about unknown names in a request, with suggestions."""

from collections.abc import Collection, Sequence
from difflib import get_close_matches

from ..logs.text import visible

_MOST_NAMED = 5
_LONGEST_NAME = 64


def about_unknown(kind: str, unknown: Sequence[str], known: Collection[str]) -> str:
    """A sentence of bounded length, whatever the number and length of the names."""
    named = ", ".join(_named(name, known) for name in unknown[:_MOST_NAMED])
    more = f" and {len(unknown) - _MOST_NAMED:,} more" if len(unknown) > _MOST_NAMED else ""
    what = f"unknown {kind}{'' if len(unknown) == 1 else 's'} {named}{more}"
    return f"{what}; known: {', '.join(sorted(known))}" if known else f"{what}; none is known here"


def _named(name: str, known: Collection[str]) -> str:
    # JSON escapes C0 control characters, but not C1, which a terminal that shows the answer would execute.
    shown = f'"{visible(name[:_LONGEST_NAME])}"'
    nearest = get_close_matches(name[:_LONGEST_NAME].lower(), known, n=1)
    return f'{shown} (did you mean "{nearest[0]}"?)' if nearest else shown
