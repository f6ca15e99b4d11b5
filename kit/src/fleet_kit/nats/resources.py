"""Creates missing streams, buckets and consumers; existing ones are kept as they are (REQ-0007)."""

import dataclasses
import logging

from nats.js import JetStreamContext, api
from nats.js.errors import APIError, NotFoundError

from fleet_contracts.names import kv_stream, kv_subject, object_chunks_subject, object_metas_subject, object_stream

from ..errors import NatsUnavailable

logger = logging.getLogger(__name__)

# JetStream's errors if the resource exists already, with the same settings or others: it is kept.
_EXISTS = {10058, 10148, 10013, 10105}
# JetStream's errors if there are fewer servers than replicas: no cluster, or one that is too small.
_TOO_FEW_SERVERS = {10074, 10005}


class TooFewServers(NatsUnavailable):
    """NATS has fewer servers than each stream is to have replicas."""


async def ensure_stream(
    js: JetStreamContext, config: api.StreamConfig, *, replicas: int = 1, owned: bool = True
) -> api.StreamInfo:
    """Return the stream's info; create it with `config` if it does not exist.

    The owner changes one setting of an existing stream: it raises the replicas to the wanted number. So when a fleet
    has grown from one NATS server to a cluster, no stream stays on a single server.
    """
    assert config.name
    try:
        info = await js.stream_info(config.name)
    except NotFoundError:
        info = await _make(js, dataclasses.replace(config, num_replicas=replicas))
    if not owned or (info.config.num_replicas or 1) >= replicas:
        return info
    logger.info("giving stream %s %d replicas", config.name, replicas)
    try:
        return await js.update_stream(info.config.evolve(num_replicas=replicas))
    except APIError as error:
        raise _explained(error, config.name, replicas) from error


async def _make(js: JetStreamContext, config: api.StreamConfig) -> api.StreamInfo:
    assert config.name
    logger.info("making stream %s", config.name)
    try:
        return await js.add_stream(config)
    except APIError as error:
        if error.err_code in _EXISTS:
            return await js.stream_info(config.name)
        raise _explained(error, config.name, config.num_replicas or 1) from error


def _explained(error: APIError, stream: str, replicas: int) -> Exception:
    if error.err_code not in _TOO_FEW_SERVERS or replicas == 1:
        return error
    return TooFewServers(
        f"stream {stream} cannot have the {replicas} replicas of PYOCO_NATS_REPLICAS: NATS has fewer servers with "
        f"JetStream that are up ({error.description}); start the others, or set it lower"
    )


async def ensure_bucket(
    js: JetStreamContext, bucket: str, *, ttl_sec: float | None = None, replicas: int = 1, owned: bool = True
) -> api.StreamInfo:
    """Like `ensure_stream`, for a KV bucket; on an existing one the owner also forbids rollup headers.

    With a Nats-Rollup header, a user that may write one key could remove all of them.
    """
    info = await ensure_stream(
        js,
        api.StreamConfig(
            name=kv_stream(bucket),
            subjects=[kv_subject(bucket, ">")],
            max_msgs_per_subject=1,
            max_age=ttl_sec,
            discard=api.DiscardPolicy.NEW,
            allow_rollup_hdrs=False,
            allow_direct=True,
            deny_delete=True,
        ),
        replicas=replicas,
        owned=owned,
    )
    if owned and info.config.allow_rollup_hdrs:
        logger.info("forbidding rollup headers on bucket %s", bucket)
        info = await js.update_stream(info.config.evolve(allow_rollup_hdrs=False))
    return info


async def ensure_object_store(js: JetStreamContext, bucket: str, *, replicas: int = 1) -> api.StreamInfo:
    """Like `ensure_stream`, for an object store; on an existing one it also allows direct gets, which reads need."""
    info = await ensure_stream(
        js,
        api.StreamConfig(
            name=object_stream(bucket),
            subjects=[object_chunks_subject(bucket, ">"), object_metas_subject(bucket)],
            discard=api.DiscardPolicy.NEW,
            allow_rollup_hdrs=True,
            allow_direct=True,
        ),
        replicas=replicas,
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
        except APIError as error:
            if error.err_code not in _EXISTS:
                raise
            info = await js.consumer_info(stream, config.durable_name)
    return info
