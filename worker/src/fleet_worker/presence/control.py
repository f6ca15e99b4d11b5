"""The line on which a worker is told what must not wait, and on which it is found to be alive."""

import logging
from collections.abc import Callable

import nats.errors
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from fleet_contracts.control import Control, ControlKind
from fleet_contracts.messages import MalformedMessage
from fleet_kit.errors import NatsUnavailable
from fleet_kit.nats.link import NatsLink

logger = logging.getLogger(__name__)


class ControlLine:
    """Every message is a hint to look: what is to be done stands in the snapshot or in the record."""

    def __init__(
        self,
        link: NatsLink,
        subject: str,
        *,
        instance_id: str,
        on_cancel: Callable[[str], None],
        on_record: Callable[[], None],
    ) -> None:
        self._link = link
        self._subject = subject
        self._instance_id = instance_id
        self._on_cancel = on_cancel
        self._on_record = on_record
        self._subscription: Subscription | None = None

    @property
    def is_open(self) -> bool:
        return self._subscription is not None

    async def open(self) -> None:
        """Listen from now on; the library keeps it over reconnects."""
        if self._subscription is None:
            self._subscription = await self._link.client.subscribe(self._subject, cb=self._on_message)

    async def find_namesake(self) -> str | None:
        """The living instance that already listens under this worker's id. To be asked before `open`."""
        try:
            answer = await self._link.request(self._subject, Control(kind=ControlKind.PING).encode())
        except NatsUnavailable as error:
            match error.__cause__:
                case nats.errors.NoRespondersError():
                    return None
                case TimeoutError():
                    # A machine that lost its power, or a process that stands still: it may be replaced.
                    logger.warning(
                        "a worker of the same id is still known to NATS, but does not answer; it is replaced"
                    )
                    return None
            raise
        found = answer.data.decode(errors="replace")
        return None if found == self._instance_id else found

    async def _on_message(self, msg: Msg) -> None:
        try:
            control = Control.decode(msg.data)
        except MalformedMessage as error:
            logger.warning("an unreadable control message is ignored: %s", error)
            return
        match control.kind:
            case ControlKind.PING:
                if msg.reply:
                    await self._link.send(msg.reply, self._instance_id.encode())
            case ControlKind.RECORD:
                self._on_record()
            case ControlKind.CANCEL:
                self._on_cancel(control.run_id or "")
