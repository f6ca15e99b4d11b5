"""A durable consumer of the service's own, which all replicas share: each message is handled once."""

from nats.js import api

from fleet_kit.nats.link import NatsLink
from fleet_kit.nats.pull import Puller
from fleet_kit.nats.resources import ensure_consumer


class SharedConsumer(Puller):
    def __init__(self, link: NatsLink, *, stream: str, durable: str, batch: int) -> None:
        super().__init__(link, stream=stream, durables=[durable], expires_seconds=5.0)
        self._config = api.ConsumerConfig(
            durable_name=durable,
            # Includes what was published before this consumer existed.
            deliver_policy=api.DeliverPolicy.ALL,
            ack_policy=api.AckPolicy.EXPLICIT,
            ack_wait=30,
            max_ack_pending=20 * batch,
        )

    async def prepare(self) -> None:
        """Make the consumer if it is not there, and begin to pull; a hook of the link."""
        await ensure_consumer(self._link.jetstream, self._stream, self._config)
        await self.start()
