"""The ledger's tables. A run is slim here; its documents (job and last snapshot) lie beside it."""

from sqlalchemy import BigInteger, Column, Float, Index, Integer, String, Table, Text, text
from sqlmodel import Field, SQLModel

from fleet_contracts.status import RunStatus

# SQLite only numbers rows by itself when the key is exactly INTEGER.
_Serial = BigInteger().with_variant(Integer, "sqlite")

# Partial indexes: SQLite uses one only when the query repeats its condition to the letter.
_UNFINISHED = text("finished_at IS NULL")
HELD = text("status IN ('RUNNING', 'CANCELLING')")


class Run(SQLModel, table=True):
    """An accepted run. This row is what accepting means; all else can be made again from it."""

    __tablename__ = "runs"
    __table_args__ = (
        Index("ix_runs_tenant", "tenant_id", "seq"),
        Index("ix_runs_tenant_status", "tenant_id", "status", "seq"),
        Index("ix_runs_tenant_flow", "tenant_id", "flow_name", "seq"),
        Index("ix_runs_tenant_tag", "tenant_id", "tag", "seq"),
        Index("ix_runs_unfinished", "checked_at", sqlite_where=_UNFINISHED, postgresql_where=_UNFINISHED),
        Index("ix_runs_held", "heartbeat_at", sqlite_where=HELD, postgresql_where=HELD),
    )

    # The order of acceptance: lists walk it backwards.
    seq: int | None = Field(default=None, sa_column=Column(_Serial, primary_key=True, autoincrement=True))
    run_id: str = Field(sa_column=Column(String(64), nullable=False, unique=True))
    tenant_id: str = Field(sa_column=Column(String(128), nullable=False))
    api_key_id: str | None = Field(default=None, sa_column=Column(String(128)))
    flow_name: str = Field(sa_column=Column(String(200), nullable=False))
    tag: str = Field(sa_column=Column(String(64), nullable=False))
    tags: str = Field(sa_column=Column(Text, nullable=False))
    status: RunStatus = Field(sa_column=Column(String(16), nullable=False))
    attempt: int = Field(default=0, sa_column=Column(Integer, nullable=False))
    worker_id: str | None = Field(default=None, sa_column=Column(String(255)))
    error: str | None = Field(default=None, sa_column=Column(Text))
    reason: str | None = Field(default=None, sa_column=Column(String(64)))
    workflow_yaml_sha256: str | None = Field(default=None, sa_column=Column(String(64)))

    submitted_at: float = Field(sa_column=Column(Float(53), nullable=False))
    updated_at: float = Field(sa_column=Column(Float(53), nullable=False))
    heartbeat_at: float = Field(sa_column=Column(Float(53), nullable=False))
    started_at: float | None = Field(default=None, sa_column=Column(Float(53)))
    finished_at: float | None = Field(default=None, sa_column=Column(Float(53)))

    # The KV revision this row reflects; a smaller one is old news.
    revision: int = Field(default=0, sa_column=Column(BigInteger, nullable=False))
    # How often the run was put on the queue, and where in the work stream its latest job lies.
    dispatch: int = Field(default=1, sa_column=Column(Integer, nullable=False))
    job_sequence: int | None = Field(default=None, sa_column=Column(BigInteger))
    # When somebody last compared this run with JetStream.
    checked_at: float = Field(sa_column=Column(Float(53), nullable=False))


class RunDocument(SQLModel, table=True):
    """The big texts of a run, apart from its row so that lists stay cheap."""

    __tablename__ = "run_documents"

    run_id: str = Field(sa_column=Column(String(64), primary_key=True))
    job: str = Field(sa_column=Column(Text, nullable=False))
    snapshot: str | None = Field(default=None, sa_column=Column(Text))


class Outbox(SQLModel, table=True):
    """What must still reach JetStream: a dispatch to send, or the traces of a withdrawn run to remove."""

    __tablename__ = "outbox"
    __table_args__ = (Index("ix_outbox_due", "due_at"),)

    id: int | None = Field(default=None, sa_column=Column(_Serial, primary_key=True, autoincrement=True))
    kind: str = Field(sa_column=Column(String(16), nullable=False))
    run_id: str = Field(sa_column=Column(String(64), nullable=False, index=True))
    dispatch: int = Field(sa_column=Column(Integer, nullable=False))
    due_at: float = Field(sa_column=Column(Float(53), nullable=False))


class RunCount(SQLModel, table=True):
    """How many runs a tenant has in each status, kept with every change so that nobody ever counts rows."""

    __tablename__ = "run_counts"

    tenant_id: str = Field(sa_column=Column(String(128), primary_key=True))
    status: RunStatus = Field(sa_column=Column(String(16), primary_key=True))
    total: int = Field(sa_column=Column(BigInteger, nullable=False))


# The same tables for SQLAlchemy's expression language, in which the batches are written.
runs: Table = Run.__table__  # type: ignore[attr-defined]
documents: Table = RunDocument.__table__  # type: ignore[attr-defined]
outbox: Table = Outbox.__table__  # type: ignore[attr-defined]
counts: Table = RunCount.__table__  # type: ignore[attr-defined]
