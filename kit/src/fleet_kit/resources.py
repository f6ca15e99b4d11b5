"""Make sure that streams, buckets and consumers exist; what exists already is respected (REQ-0007)."""

import logging

from nats.js import JetStreamContext, api
from nats.js.errors import BadRequestError, BucketNotFoundError, NotFoundError

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


async def ensure_object_store(js: JetStreamContext, bucket: str) -> None:
    try:
        await js.object_store(bucket)
    except (NotFoundError, BucketNotFoundError):
        logger.info("making object store %s", bucket)
        try:
            await js.create_object_store(bucket)
        except BadRequestError as error:
            if error.err_code not in _EXISTS:
                raise


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
