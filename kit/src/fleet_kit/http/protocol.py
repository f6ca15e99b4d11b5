"""The HTTP protocol of a service: requests that its parser refuses are answered with our envelope."""

import uuid

import orjson
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from fleet_contracts.names import HEADER_REQUEST_ID

from ..errors import envelope

_REQUEST_ID = HEADER_REQUEST_ID.lower().encode()


class EnvelopeProtocol(HttpToolsProtocol):
    """uvicorn's protocol; the gateway lets a few requests through that this parser does not take."""

    def send_400_response(self, msg: str) -> None:
        # Headers that came before the fault; the gateway's own are the first.
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
