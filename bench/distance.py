"""A unix socket in front of another one that delays every byte, as a network between two machines would."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_CHUNK_BYTES = 256 * 1024


@contextmanager
def distant(target: Path, at: Path, *, one_way_seconds: float) -> Iterator[None]:
    """Connections to `at` reach `target`; each direction takes so much longer."""
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(at))
        # The server may run as another user than the client.
        listening.listen()
        threading.Thread(target=_accept, args=(listening, target, one_way_seconds), daemon=True).start()
        yield


def _accept(listening: socket.socket, target: Path, seconds: float) -> None:
    while True:
        try:
            near, _ = listening.accept()
        except OSError:
            return  # closed
        far = socket.socket(socket.AF_UNIX)
        far.connect(str(target))
        for source, sink in ((near, far), (far, near)):
            threading.Thread(target=_carry, args=(source, sink, seconds), daemon=True).start()


def _carry(source: socket.socket, sink: socket.socket, seconds: float) -> None:
    try:
        while data := source.recv(_CHUNK_BYTES):
            time.sleep(seconds)
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)
    except OSError:
        source.close()
        sink.close()
