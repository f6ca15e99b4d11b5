"""Asks the process of this container whether it is ready; the exit code is the answer."""

import http.client
import os
import sys

_TIMEOUT_SECONDS = 2.0


def main() -> int:
    """The port is the one given, or that of an HTTP service."""
    port = int(sys.argv[1] if len(sys.argv) > 1 else os.environ.get("PYOCO_PORT", "8000"))
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_TIMEOUT_SECONDS)
    try:
        connection.request("GET", "/ready")
        answer = connection.getresponse()
        said = answer.read().decode(errors="replace")
    except OSError as error:
        said, ready = f"the service does not answer ({error})", False
    else:
        ready = answer.status == http.client.OK
    sys.stdout.write(said + "\n")
    return 0 if ready else 1


if __name__ == "__main__":
    sys.exit(main())
