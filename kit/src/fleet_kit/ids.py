"""Ids that begin with the time."""

import os
import time
import uuid


def new_id() -> str:
    """A version 7 UUID: ids sort by time, so that the indexes of a database grow at one end only.

    With random ids every insert goes somewhere else, and an accept costs more the more runs there are.
    """
    milliseconds = time.time_ns() // 1_000_000
    chance = int.from_bytes(os.urandom(10), "big")
    high = (milliseconds << 16) | (7 << 12) | (chance >> 68)
    low = (0b10 << 62) | (chance & ((1 << 62) - 1))
    return str(uuid.UUID(int=(high << 64) | low))
