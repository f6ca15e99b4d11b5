"""Makes the streams, buckets and consumers of the services, for tests that start a worker without them."""

from collections.abc import Iterable

from nats.js import JetStreamContext

from fleet_contracts.names import ConsumerDefaults, WireNames
from fleet_kit.nats.resources import ensure_bucket, ensure_consumer, ensure_object_store, ensure_stream
from fleet_kit.nats.stream_limits import DlqLimits, EventsLimits
from fleet_kit.nats.streams import dlq_stream_config, events_stream_config, work_consumer_config, work_stream_config


async def make_all(
    js: JetStreamContext, names: WireNames, *, tags: Iterable[str], consumers: ConsumerDefaults | None = None
) -> None:
    """Streams, buckets and the queues of the tags, as runs-api, workers-api and wheels-api would."""
    await ensure_stream(js, work_stream_config(names))
    await ensure_stream(js, dlq_stream_config(names, DlqLimits()))
    await ensure_stream(js, events_stream_config(names, EventsLimits()))
    await ensure_bucket(js, names.runs_kv_bucket)
    await ensure_bucket(js, names.workers_kv_bucket)
    await ensure_object_store(js, names.wheel_object_store_bucket)
    await make_queues(js, names, tags=tags, consumers=consumers)


async def make_queues(
    js: JetStreamContext, names: WireNames, *, tags: Iterable[str], consumers: ConsumerDefaults | None = None
) -> None:
    for tag in tags:
        config = work_consumer_config(names, consumers or ConsumerDefaults(), tag)
        await ensure_consumer(js, names.work_stream, config)
