"""Protects the memory and environment of a process from other processes of its user."""

import ctypes
import sys

_PR_SET_DUMPABLE = 4


def keep_private() -> None:
    """Clear PR_SET_DUMPABLE (Linux): only root can still read this process's memory and environment."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_DUMPABLE, 0)
