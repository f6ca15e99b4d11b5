"""The library's NATS client, with endless reconnects, immediate permission errors and no waits for a dead server.

It overrides private methods: the range of versions is pinned, and tests/test_library_internals.py knows their names.
"""

import asyncio
import re
import ssl
from typing import Any

import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js import JetStreamContext

# The idle heartbeat of push consumers. Such a consumer lives on one server of a cluster: after two missed heartbeats
# it is recreated on another one.
_IDLE_HEARTBEAT_SECONDS = 1.0
_DENIED_PUBLISH = re.compile(r'permissions violation for publish to "([^"]*)"', re.IGNORECASE)


class NotPermitted(nats.errors.Error):
    """The NATS user of this process may not publish to a subject."""

    def __init__(self, subject: str) -> None:
        self.subject = subject

    def __str__(self) -> str:
        return f"the NATS user of this process may not publish to {self.subject}; see `pyoco-server nats-config`"


def denied_subject(error: Exception) -> str | None:
    """The subject of a denied publish, if this is what the error reports.

    In lower case, because the library lowercases the server's errors.
    """
    found = _DENIED_PUBLISH.search(str(error))
    return found[1].lower() if found else None


def explained(error: Exception) -> str:
    """The text of an error, with advice where the cause is known."""
    text = str(error) or type(error).__name__
    if "authorization violation" in text.lower() or "user authentication" in text.lower():
        return f"NATS does not accept this process's user ({text}); check PYOCO_NATS_NKEY_FILE and the server's users"
    if isinstance(error, ssl.SSLCertVerificationError):
        about_name = "mismatch" in error.verify_message
        setting = "PYOCO_NATS_TLS_HOSTNAME" if about_name else "PYOCO_NATS_TLS_CA_FILE"
        return f"the certificate of NATS is not trusted ({error.verify_message}); check {setting}"
    return text


class HeartbeatJetStream(JetStreamContext):
    """Detects the loss of a push consumer within four seconds, instead of the library's twenty."""

    async def subscribe(self, *arguments: Any, **options: Any) -> JetStreamContext.PushSubscription:
        options.setdefault("idle_heartbeat", _IDLE_HEARTBEAT_SECONDS)
        return await super().subscribe(*arguments, **options)


class ReconnectingClient(Client):
    def __init__(self) -> None:
        super().__init__()
        self._asking: dict[str, set[asyncio.Future[None]]] = {}

    def deny(self, denied: str) -> None:
        """Fail the pending requests to a denied subject, which is given in lower case."""
        for subject, waiting in self._asking.items():
            for denial in waiting if subject.lower() == denied else ():
                if not denial.done():
                    denial.set_exception(NotPermitted(subject))

    async def request(self, subject: str, *arguments: Any, **options: Any) -> Msg:
        denial: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._asking.setdefault(subject, set()).add(denial)
        asking = asyncio.create_task(super().request(subject, *arguments, **options))
        try:
            first: set[asyncio.Future[Any]] = {asking, denial}
            await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
            if not asking.done():
                await denial
            return await asking
        finally:
            asking.cancel()
            denial.cancel()
            if (waiting := self._asking.get(subject)) is not None:
                waiting.discard(denial)
                if not waiting:
                    del self._asking[subject]

    async def leave_server(self, reason: str) -> None:
        """Connect to the next server."""
        await self._process_op_err(nats.errors.Error(reason))

    async def _process_op_err(self, e: Exception) -> None:
        """Drop unsent data first: the library would wait minutes for a dead server to take it."""
        writer = getattr(self._transport, "_io_writer", None)  # none if it is a web socket
        if self.is_connected and writer is not None:
            writer.transport.abort()
        await super()._process_op_err(e)

    async def _process_err(self, err_msg: str) -> None:
        """Reconnect when the server ends the connection, for example because our user was removed: it may come back.

        The library would close the client for good.
        """
        error = nats.errors.Error(f"nats: {err_msg}")
        if "permissions violation" in err_msg.lower() or not self.is_connected:
            await super()._process_err(err_msg)
            return
        await self._process_op_err(error)
        await self._error_cb(error)
