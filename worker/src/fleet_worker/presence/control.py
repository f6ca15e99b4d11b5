"""The control subjects of a worker: hints that must not wait, jobs of others, pings that show whether it is alive."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import nats.errors
from nats.aio.msg import Msg

from fleet_contracts.control import Control, ControlKind
from fleet_contracts.messages import MalformedMessage
from fleet_kit.errors import NatsUnavailable
from fleet_kit.nats.link import NatsLink

logger = logging.getLogger(__name__)


@dataclass(eq=False)
class ControlLine:
    """A message is a hint to read the snapshot or the record, which hold the actual state; or it is about a job.

    Jobs come on a subject for each tag: NATS lets a worker hear those of the tags that its permissions name. A job
    whose message is lost is delivered again, as any that no worker has claimed.
    """

    link: NatsLink
    subject: str
    instance_id: str
    on_cancel: Callable[[str], None]
    on_record: Callable[[], None]
    # The answer to a message about a job.
    on_job: Callable[[Control], bytes]
    handover_subjects: Sequence[str] = ()
    is_open: bool = False

    async def open(self) -> None:
        """Subscribe, once: the NATS client renews the subscriptions after a reconnect."""
        for subject in (self.subject, *self.handover_subjects):
            await self.link.client.subscribe(subject, cb=self._on_message)
        self.is_open = True

    async def find_other_instance(self) -> str | None:
        """The instance id of another living worker that listens under this worker id. Call it before `open`."""
        try:
            answer = await self.link.request(self.subject, Control(kind=ControlKind.PING).encode())
        except NatsUnavailable as error:
            match error.__cause__:
                case nats.errors.NoRespondersError():
                    return None
                case TimeoutError():
                    # Its machine has lost power, or its process hangs: it may be replaced.
                    logger.warning(
                        "a worker of the same id is still known to NATS, but does not answer; it is replaced"
                    )
                    return None
            raise
        found = answer.data.decode(errors="replace")
        return None if found == self.instance_id else found

    async def _on_message(self, msg: Msg) -> None:
        try:
            control = Control.decode(msg.data)
        except MalformedMessage as error:
            logger.warning("an unreadable control message is ignored: %s", error)
            return
        match control.kind:
            case ControlKind.PING:
                if msg.reply:
                    await self.link.send(msg.reply, self.instance_id.encode())
            case ControlKind.RECORD:
                self.on_record()
            case ControlKind.OFFER | ControlKind.JOB:
                answer = self.on_job(control)
                if msg.reply:
                    await self.link.send(msg.reply, answer)
            case ControlKind.CANCEL:
                self.on_cancel(control.run_id or "")
