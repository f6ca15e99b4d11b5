"""Limits of the streams that grow with the runs; settings classes inherit them."""

from pydantic import BaseModel, Field


class DlqLimits(BaseModel):
    """Limits of the dead letter stream."""

    dlq_max_age_sec: float = Field(604800.0, gt=0)
    dlq_max_msgs: int = Field(100_000, ge=1)
    dlq_max_bytes: int = Field(512 * 1024 * 1024, ge=1)


class EventsLimits(BaseModel):
    """Limits of the stream of run events."""

    events_max_age_sec: float = Field(604800.0, gt=0)
    events_max_bytes: int = Field(1024 * 1024 * 1024, ge=1)
