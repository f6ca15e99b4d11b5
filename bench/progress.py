"""What is said while measuring; the figures alone go to standard output."""

import sys


def say(text: str) -> None:
    print(f"bench: {text}", file=sys.stderr, flush=True)
