"""Make sure that streams, buckets and consumers exist; what exists already is respected (REQ-0007)."""

import logging

from nats.js import JetStreamContext, api
from nats.js.errors import BadRequestError, NotFoundError

from fleet_contracts.names import object_chunks_subject, object_metas_subject, object_stream

logger = logging.getLogger(__name__)

# JetStream's answers when somebody else was faster, or made it differently: both are theirs to keep.
_EXISTS = {10058, 10148, 10013, 10105}


async def ensure_stream(js: JetStreamContext, config: api.StreamConfig) -> api.StreamInfo:
    """The stream's info; made with `config` only if it is not there."""
    assert config.name
    try:
        return await js.stream_info(config.name)
    except NotFoundError:
        logger.info("making stream %s", config.name)
    try:
        return await js.add_stream(config)
    except BadRequestError as error:
        if error.err_code not in _EXISTS:
            raise
        return await js.stream_info(config.name)


async def ensure_bucket(
    js: JetStreamContext, bucket: str, *, history: int = 1, ttl_sec: float | None = None
) -> api.StreamInfo:
    return await ensure_stream(
        js,
        api.StreamConfig(
            name=f"KV_{bucket}",
            subjects=[f"$KV.{bucket}.>"],
            max_msgs_per_subject=history,
            max_age=ttl_sec,
            discard=api.DiscardPolicy.NEW,
            allow_rollup_hdrs=True,
            allow_direct=True,
            deny_delete=True,
            duplicate_window=min(120.0, ttl_sec) if ttl_sec else 120.0,
            max_msgs=-1,
            max_bytes=-1,
            max_consumers=-1,
        ),
    )


async def ensure_object_store(js: JetStreamContext, bucket: str) -> api.StreamInfo:
    """The one setting of an existing store that is changed: it is read by direct gets, so they are allowed."""
    info = await ensure_stream(
        js,
        api.StreamConfig(
            name=object_stream(bucket),
            subjects=[object_chunks_subject(bucket, ">"), object_metas_subject(bucket)],
            discard=api.DiscardPolicy.NEW,
            allow_rollup_hdrs=True,
            allow_direct=True,
            max_bytes=-1,
        ),
    )
    if not info.config.allow_direct:
        logger.info("allowing direct gets on object store %s", bucket)
        info = await js.update_stream(info.config.evolve(allow_direct=True))
    return info


async def ensure_consumer(js: JetStreamContext, stream: str, config: api.ConsumerConfig) -> api.ConsumerInfo:
    assert config.durable_name
    info: api.ConsumerInfo
    try:
        info = await js.consumer_info(stream, config.durable_name)
    except NotFoundError:
        logger.info("making consumer %s on %s", config.durable_name, stream)
        try:
            info = await js.add_consumer(stream, config)
        except BadRequestError as error:
            if error.err_code not in _EXISTS:
                raise
            info = await js.consumer_info(stream, config.durable_name)
    return info
