"""Everything that a run says goes to its recorder: printed, logged, or written to the descriptors 1 and 2.

Outside of runs it goes where the process wrote to when it was started, which is the agent's log.
"""

import codecs
import contextlib
import ctypes
import faulthandler
import io
import logging
import os
import select
import sys
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any, TextIO, cast

from ...boundary.masking import SECRETS
from .recorder import Recorder, follow_threads

_MOST_BYTES = 1024 * 1024
_READ_BYTES = 64 * 1024
_LINE_BUFFERED = 1  # _IOLBF of <stdio.h>
_OUT_OF_MEMORY_PAUSE_SECONDS = 0.05


class Output:
    """The output of a process, made once; runs come and go by `begin` and `end`."""

    def __init__(self) -> None:
        self.recorder: Recorder | None = None
        # Reentrant: a finalizer that prints may run in any of our calls. Recorders take the same.
        self.lock = threading.RLock()
        self._poll = select.poll()
        self._pipes: dict[int, _Pipe] = {}
        self._log_handler = _LogHandler(lambda: self.recorder)
        self._libc = _LineBufferedStdout()

    def capture(self, pipe_ends: Sequence[int]) -> None:
        """Take the place of stdout and stderr with these pipes, each given by its two ends."""
        sys.stdout = cast(Any, TaskStream("stdout", sys.stdout, lambda: self.recorder))
        sys.stderr = cast(Any, TaskStream("stderr", sys.stderr, lambda: self.recorder))
        for name, descriptor in (("stdout", 1), ("stderr", 2)):
            pipe = _Pipe(name, descriptor, *pipe_ends[2 * descriptor - 2 : 2 * descriptor])
            self._pipes[pipe.read_end] = pipe
            self._poll.register(pipe.read_end, select.POLLIN)
            if descriptor == 2:
                # Of a process that crashes nobody reads the pipe.
                faulthandler.enable(pipe.original)
        follow_threads()
        # The recorder of a forked child would never be emptied: the child writes into the pipes of its parent.
        os.register_at_fork(after_in_child=self._forget_recorder)
        threading.Thread(target=self._read_on, name="fleet-output", daemon=True).start()

    def capture_logging(self) -> None:
        """After the flows were imported: if one has configured logging, its own handlers write."""
        root = logging.getLogger()
        if root.handlers:
            return
        root.addHandler(self._log_handler)
        if root.level == logging.WARNING:  # nobody has set it
            root.setLevel(logging.INFO)
        logging.captureWarnings(True)

    def begin(self, recorder: Recorder) -> None:
        self.drain()  # it belongs to no run
        if self._log_handler.has_warned:
            self._log_handler.has_warned = False
            # Python shows a warning once for each place in the code: from now on, once more.
            with warnings.catch_warnings():
                pass
        self.recorder = recorder

    def end(self) -> None:
        self.recorder = None
        for pipe in self._pipes.values():
            pipe.decoder.reset()

    def flush(self) -> None:
        """Record what native code has printed, also an incomplete line."""
        self._libc.flush()
        self.drain()

    def drain(self) -> None:
        """Record what the pipes hold; returns at once, also if a program never stops writing."""
        with self.lock:
            for read_end, _ in self._poll.poll(0):
                self._take(self._pipes[read_end])

    def release(self) -> None:
        """Before the process ends: let its last words go where they went at first."""
        self.drain()
        for pipe in self._pipes.values():
            os.dup2(pipe.original, pipe.descriptor)

    def _take(self, pipe: "_Pipe") -> None:
        data = pipe.read()
        if (recorder := self.recorder) is None:
            os.write(pipe.original, SECRETS.mask_bytes(data))
        elif text := pipe.decoder.decode(data):
            recorder.write_from_outside(pipe.name, text)

    def _read_on(self) -> None:
        poll = select.poll()
        for read_end in self._pipes:
            poll.register(read_end, select.POLLIN)
        while True:
            poll.poll()
            try:
                self.drain()
            except MemoryError:  # the flow's, which may free some
                time.sleep(_OUT_OF_MEMORY_PAUSE_SECONDS)

    def _forget_recorder(self) -> None:
        self.recorder = None


class _Pipe:
    """Takes the place of a descriptor; `original` is where that led to. Its reading end does not block."""

    def __init__(self, name: str, descriptor: int, read_end: int, write_end: int) -> None:
        self.name = name
        self.descriptor = descriptor
        self.original = os.dup(descriptor)
        self.decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.read_end = read_end
        os.set_inheritable(read_end, False)
        os.dup2(write_end, descriptor)
        os.close(write_end)

    def read(self) -> bytes:
        """All that it holds: a line that was written at once is not torn."""
        data = b""
        with contextlib.suppress(BlockingIOError):
            while len(data) < _MOST_BYTES and (more := os.read(self.read_end, _READ_BYTES)):
                data += more
                if len(more) < _READ_BYTES:
                    break
        return data


class _LineBufferedStdout:
    """The C library's stdout: it would keep what native code prints until there are kilobytes of it."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None)
        self._stdout: ctypes.c_void_p | None = None
        try:
            self._stdout = ctypes.c_void_p.in_dll(self._libc, "stdout")
        except ValueError:
            pass  # another C library
        else:
            self._libc.setvbuf(self._stdout, None, _LINE_BUFFERED, ctypes.c_size_t(0))

    def flush(self) -> None:
        if self._stdout is not None:
            self._libc.fflush(self._stdout)


class _LogHandler(logging.Handler):
    """Records log messages with their levels; outside of runs they are written to stderr."""

    def __init__(self, recorder: Callable[[], Recorder | None]) -> None:
        super().__init__()
        self._recorder = recorder
        self.has_warned = False

    def handle(self, record: logging.LogRecord) -> Any:
        """Without the handler's lock, as recorders have one.

        A finalizer that runs with the recorder's lock held may log while another thread logs: with two locks, each
        would wait for the other.
        """
        if kept := self.filter(record):
            # Since Python 3.12 a filter may return another record.
            self.emit(kept if isinstance(kept, logging.LogRecord) else record)
        return kept

    def emit(self, record: logging.LogRecord) -> None:
        self.has_warned |= record.name == "py.warnings"
        try:
            text = f"{self.format(record).rstrip()}\n"
            if (recorder := self._recorder()) is None:
                sys.stderr.write(f"{record.levelname} {text}")
            else:
                recorder.write("stderr", text, level=record.levelname)
        except Exception:  # noqa: BLE001 - as every handler of logging does
            self.handleError(record)


class TaskStream(io.TextIOBase):
    """Replaces sys.stdout or sys.stderr: writes to the recorder during a run, else to the original stream."""

    encoding = "utf-8"

    def __init__(self, name: str, original: TextIO, recorder: Callable[[], Recorder | None]) -> None:
        self._name = name
        self._original = original
        self._recorder = recorder
        self.buffer = _BinaryStream(self)

    def write(self, text: str) -> int:
        recorder = self._recorder()
        if recorder is None:
            self._original.write(text)
            self._original.flush()
        elif text:
            recorder.write(self._name, text)
        return len(text)

    def flush(self) -> None:
        pass

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        """What is written to the descriptor is captured as well."""
        return self._original.fileno()


class _BinaryStream(io.RawIOBase):
    def __init__(self, text: TaskStream) -> None:
        self._text = text

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        raw = bytes(data)
        self._text.write(raw.decode(errors="replace"))
        return len(raw)
