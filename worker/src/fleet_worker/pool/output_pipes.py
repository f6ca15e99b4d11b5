"""The agent's hold on the pipes that a runner reads its own output from: for a runner that cannot read.

A runner cannot while native code holds the interpreter. If that code prints more than a pipe takes, it waits for a
reader: the agent has to be it. What is left when a runner has crashed are the last words of native code.
"""

import contextlib
import fcntl
import os
import struct
import termios

_CAPACITY_BYTES = 1024 * 1024
_READ_BYTES = 64 * 1024


class OutputPipes:
    def __init__(self) -> None:
        self._ends = {"stdout": os.pipe(), "stderr": os.pipe()}
        self._capacity: dict[str, int] = {}
        for name, (read_end, write_end) in self._ends.items():
            os.set_blocking(read_end, False)
            self._capacity[name] = _enlarge(write_end)

    @property
    def descriptors(self) -> list[int]:
        """For the runner: both ends of stdout's pipe, both ends of stderr's."""
        return [descriptor for ends in self._ends.values() for descriptor in ends]

    def are_full(self) -> bool:
        """Whether somebody waits, or will soon, because nobody reads."""
        return any(self._held(read_end) > self._capacity[name] // 2 for name, (read_end, _) in self._ends.items())

    def read(self) -> list[tuple[str, bytes]]:
        """The name of each stream with all that its pipe holds."""
        found = []
        for name, (read_end, _) in self._ends.items():
            data = b""
            # A program that never stops writing must not keep us here.
            with contextlib.suppress(BlockingIOError):
                while len(data) < _CAPACITY_BYTES and (more := os.read(read_end, _READ_BYTES)):
                    data += more
            if data:
                found.append((name, data))
        return found

    def close(self) -> None:
        for ends in self._ends.values():
            for descriptor in ends:
                os.close(descriptor)
        self._ends = {}

    def _held(self, read_end: int) -> int:
        (held,) = struct.unpack("i", fcntl.ioctl(read_end, termios.FIONREAD, b"\0\0\0\0"))
        return int(held)


def _enlarge(write_end: int) -> int:
    """The capacity that the kernel grants; users may have only so many large pipes."""
    with contextlib.suppress(OSError, AttributeError):  # no more of them, or not Linux
        fcntl.fcntl(write_end, fcntl.F_SETPIPE_SZ, _CAPACITY_BYTES)
    try:
        return int(fcntl.fcntl(write_end, fcntl.F_GETPIPE_SZ))
    except AttributeError:
        return _READ_BYTES
