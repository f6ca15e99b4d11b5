"""The socket between a runner and its agent."""

import os
import socket
import threading

from ..boundary.frames import Frame, encode
from ..boundary.masking import SECRETS


class Channel:
    """The runner's end of it. Frames may be sent from any thread."""

    def __init__(self, fd: int) -> None:
        os.set_inheritable(fd, False)
        self._socket = socket.socket(fileno=fd)
        self._lock = threading.Lock()
        # A forked child of a task must not keep the socket open when this process dies.
        os.register_at_fork(after_in_child=self._socket.close)

    def send(self, frame: Frame) -> None:
        data = encode(SECRETS.mask_frame(frame))
        with self._lock:
            self._socket.sendall(data)

    def read(self) -> bytes:
        return self._socket.recv(65536)
