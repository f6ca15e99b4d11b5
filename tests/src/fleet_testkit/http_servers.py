"""HTTP servers that tests answer with."""

import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

# How soon the server notices that it shall end.
_POLL_SECONDS = 0.02


class _Server(ThreadingHTTPServer):
    # A connection that finds the queue full is tried again only after a second.
    request_queue_size = 64


@contextmanager
def serving(handler: type[BaseHTTPRequestHandler], *, tls: ssl.SSLContext | None = None) -> Iterator[int]:
    """Serve with `handler` on a port of this machine, each connection in a thread; yield the port."""
    server = _Server(("127.0.0.1", 0), handler)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(_POLL_SECONDS,))
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
