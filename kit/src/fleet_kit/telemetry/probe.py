"""The health check of a container: exit code 0 if its process answers /ready with 200.

It starts every few seconds in every container, so it imports next to nothing.
"""

import os
import socket
import sys

_TIMEOUT_SECONDS = 5.0
_REQUEST = b"GET /ready HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


def main() -> int:
    """Probe the port of the first argument, else of PYOCO_PORT, else 8000."""
    port = int(sys.argv[1] if len(sys.argv) > 1 else os.environ.get("PYOCO_PORT", "8000"))
    try:
        answer = _answer(port)
    except OSError as error:
        sys.stdout.write(f"the service does not answer ({error})\n")
        return 1
    head, _, body = answer.partition(b"\r\n\r\n")
    sys.stdout.write(body.decode(errors="replace") + "\n")
    return 0 if head.split(b" ")[1:2] == [b"200"] else 1


def _answer(port: int) -> bytes:
    with (
        socket.create_connection(("127.0.0.1", port), timeout=_TIMEOUT_SECONDS) as connection,
        connection.makefile("rb") as answer,
    ):
        connection.sendall(_REQUEST)
        return answer.read()


if __name__ == "__main__":
    sys.exit(main())
