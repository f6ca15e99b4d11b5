"""The data of server-sent events about runs and their output."""

from pydantic import BaseModel

from fleet_contracts.status import RunStatus

from .schemas import RunInFull


class RunChanged(BaseModel):
    """The run, at first and whenever it changes; it has an id."""

    run_id: str
    snapshot: RunInFull
    ts: float


class RunUnchanged(BaseModel):
    """Nothing has happened for some seconds."""

    run_id: str
    ts: float


class LogOutput(BaseModel):
    """A piece of output; it has an id."""

    at: float
    task: str | None
    stream: str | None
    level: str | None
    text: str | None
    attempt: int


class LogEnd(BaseModel):
    """The run has ended, and there is no more output."""

    run_id: str
    status: RunStatus
    attempt: int
    error: str | None


class RunsUnknown(BaseModel):
    """Runs that do not exist, or not any more, or belong to another tenant."""

    run_ids: list[str]
    detail: str


class RunsReady(BaseModel):
    """The states of all runs were told. It has an id."""

    runs: int
    ended: int


class RunsEnd(BaseModel):
    """All runs have ended, and each end was told."""

    runs: int


class RunsFull(BaseModel):
    """So many runs were told that the stream closes; only with `tags`."""

    runs: int
    detail: str
