"""uvicorn's HTTP protocol, with our error envelope for requests that its parser refuses.

It overrides an undocumented method: the range of versions is pinned, tests/test_library_internals.py knows its name.
"""

import uuid

import orjson
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from fleet_contracts.names import HEADER_REQUEST_ID

from ..errors import envelope

_REQUEST_ID = HEADER_REQUEST_ID.lower().encode()


class EnvelopeProtocol(HttpToolsProtocol):
    """Answers malformed requests; the gateway lets a few through that this parser refuses."""

    def send_400_response(self, msg: str) -> None:
        # Headers parsed before the fault; the gateway's own come first.
        known = dict(self.headers or ())
        request_id = known.get(_REQUEST_ID, uuid.uuid4().hex.encode())
        body = orjson.dumps(
            envelope(status=400, message="the request is malformed", request_id=request_id.decode("latin-1"))
        )
        head = (
            b"HTTP/1.1 400 Bad Request",
            b"content-type: application/json",
            b"content-length: %d" % len(body),
            b"x-request-id: %b" % request_id,
            b"connection: close",
        )
        self.transport.write(b"\r\n".join((*head, b"", body)))
        self.transport.close()
