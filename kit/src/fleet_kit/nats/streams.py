"""The configurations with which missing streams and consumers are created (appendix E)."""

from nats.js import api

from fleet_contracts.names import ConsumerDefaults, WireNames

from .stream_limits import DlqLimits, EventsLimits


def work_stream_config(names: WireNames) -> api.StreamConfig:
    return api.StreamConfig(
        name=names.work_stream,
        subjects=[f"{names.work_subject_prefix}.>"],
        retention=api.RetentionPolicy.WORK_QUEUE,
        # A single job can be read by its sequence without the stream's leader.
        allow_direct=True,
    )


def dlq_stream_config(names: WireNames, limits: DlqLimits) -> api.StreamConfig:
    config = _limited(names.dlq_stream, names.dlq_subject_prefix, limits.dlq_max_age_sec, limits.dlq_max_bytes)
    return config.evolve(max_msgs=limits.dlq_max_msgs)


def events_stream_config(names: WireNames, limits: EventsLimits) -> api.StreamConfig:
    return _limited(
        names.events_stream, names.events_subject_prefix, limits.events_max_age_sec, limits.events_max_bytes
    )


def _limited(stream: str, prefix: str, max_age_sec: float, max_bytes: int) -> api.StreamConfig:
    return api.StreamConfig(
        name=stream,
        subjects=[f"{prefix}.>"],
        retention=api.RetentionPolicy.LIMITS,
        discard=api.DiscardPolicy.OLD,
        max_age=max_age_sec,
        max_bytes=max_bytes,
        allow_direct=True,
    )


def work_consumer_config(names: WireNames, defaults: ConsumerDefaults, tag: str) -> api.ConsumerConfig:
    return api.ConsumerConfig(
        durable_name=names.work_durable(tag),
        filter_subject=names.work_subject(tag),
        ack_policy=api.AckPolicy.EXPLICIT,
        ack_wait=defaults.consumer_ack_wait_sec,
        max_deliver=defaults.consumer_max_deliver,
        max_ack_pending=defaults.consumer_max_ack_pending,
    )
