"""Closes a process to the other processes of its user."""

import ctypes
import sys

_PR_SET_DUMPABLE = 4


def keep_private() -> None:
    """Let no other process of the same user read the environment and the memory of this one; root still can."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_DUMPABLE, 0)
