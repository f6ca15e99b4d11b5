"""How much the streams that grow with the runs may hold; settings classes inherit it."""

from pydantic import BaseModel, Field


class DlqLimits(BaseModel):
    """How much the dead letter stream keeps."""

    dlq_max_age_sec: float = Field(604800.0, gt=0)
    dlq_max_msgs: int = Field(100_000, ge=1)
    dlq_max_bytes: int = Field(512 * 1024 * 1024, ge=1)


class EventsLimits(BaseModel):
    """How much the stream of run events keeps."""

    events_max_age_sec: float = Field(604800.0, gt=0)
    events_max_bytes: int = Field(1024 * 1024 * 1024, ge=1)
