"""The ledger's tables. The row of a run is small; its documents (job and last snapshot) are in another table."""

from typing import Any

from sqlalchemy import BigInteger, Column, Float, Index, Integer, String, Table, Text, TextClause, TypeDecorator, text
from sqlmodel import Field, SQLModel

from fleet_contracts.status import RunStatus

# SQLite generates keys only for a column whose type is exactly INTEGER.
_Serial = BigInteger().with_variant(Integer, "sqlite")


class _Status(TypeDecorator[RunStatus]):
    """A text that is read as the status it names."""

    impl = String(16)
    cache_ok = True

    def process_result_value(self, value: Any, dialect: Any) -> RunStatus | None:
        return None if value is None else RunStatus(value)


# Conditions of partial indexes: SQLite uses such an index only if the query repeats its condition literally.
_UNFINISHED = text("finished_at IS NULL")
HELD = text("status IN ('RUNNING', 'CANCELLING')")
QUEUED = text("status = 'PENDING' AND job_sequence IS NOT NULL")
FROM_YAML = text("workflow_yaml_sha256 IS NOT NULL")
WITH_DEADLINE = text("finished_at IS NULL AND deadline_at IS NOT NULL")
FINISHED = text("finished_at IS NOT NULL")
FINISHED_IN_KV = text("finished_at IS NOT NULL AND kv_released = 0")
TAKEN = text("due_since IS NOT NULL")


def _partial_index(name: str, *columns: str, where: TextClause) -> Index:
    return Index(name, *columns, sqlite_where=where, postgresql_where=where)


class Run(SQLModel, table=True):
    """An accepted run. The commit of this row is the acceptance; all else can be restored from the ledger."""

    __tablename__ = "runs"
    __table_args__ = (
        Index("ix_runs_tenant", "tenant_id", "seq"),
        Index("ix_runs_tenant_status", "tenant_id", "status", "seq"),
        Index("ix_runs_tenant_flow", "tenant_id", "flow_name", "seq"),
        Index("ix_runs_tenant_tag", "tenant_id", "tag", "seq"),
        _partial_index("ix_runs_unfinished", "checked_at", where=_UNFINISHED),
        _partial_index("ix_runs_held_changed", "changed_at", where=HELD),
        _partial_index("ix_runs_queued", "tag", "job_sequence", where=QUEUED),
        Index("ix_runs_tenant_changed", "tenant_id", "changed_at", "seq"),
        Index("ix_runs_tenant_submitted", "tenant_id", "submitted_at"),
        _partial_index("ix_runs_tenant_yaml", "tenant_id", "workflow_yaml_sha256", "seq", where=FROM_YAML),
        _partial_index("ix_runs_deadline", "deadline_at", where=WITH_DEADLINE),
        _partial_index("ix_runs_finished", "finished_at", where=FINISHED),
        _partial_index("ix_runs_in_kv", "finished_at", where=FINISHED_IN_KV),
    )

    # The order of acceptance: lists walk it backwards.
    seq: int | None = Field(default=None, sa_column=Column(_Serial, primary_key=True, autoincrement=True))
    run_id: str = Field(sa_column=Column(String(64), nullable=False, unique=True))
    tenant_id: str = Field(sa_column=Column(String(128), nullable=False))
    api_key_id: str | None = Field(default=None, sa_column=Column(String(128)))
    flow_name: str = Field(sa_column=Column(String(200), nullable=False))
    tag: str = Field(sa_column=Column(String(64), nullable=False))
    tags: str = Field(sa_column=Column(Text, nullable=False))
    status: RunStatus = Field(sa_column=Column(_Status, nullable=False))
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

    # The KV revision that this row reflects; a smaller one is outdated.
    revision: int = Field(default=0, sa_column=Column(BigInteger, nullable=False))
    # How often the run was dispatched, and the sequence of its latest job in the work stream.
    dispatch: int = Field(default=1, sa_column=Column(Integer, nullable=False))
    job_sequence: int | None = Field(default=None, sa_column=Column(BigInteger))
    # When the sweeper last compared this run with JetStream.
    checked_at: float = Field(sa_column=Column(Float(53), nullable=False))
    # When the latest change was recorded, by the ledger's own clock; `updated_after` compares this.
    changed_at: float = Field(sa_column=Column(Float(53), nullable=False))

    failures: int = Field(default=0, sa_column=Column(Integer, nullable=False))
    not_before: float | None = Field(default=None, sa_column=Column(Float(53)))
    deadline_at: float | None = Field(default=None, sa_column=Column(Float(53)))
    # How often the ended run was requeued.
    reopened: int = Field(default=0, sa_column=Column(Integer, nullable=False))
    rerun_of: str | None = Field(default=None, sa_column=Column(String(64)))
    # 1: the run has ended and its snapshot was removed from KV.
    kv_released: int = Field(default=0, sa_column=Column(Integer, nullable=False))


class RunDocument(SQLModel, table=True):
    """The large texts of a run, in a separate table so that lists stay cheap."""

    __tablename__ = "run_documents"

    run_id: str = Field(sa_column=Column(String(64), primary_key=True))
    job: str = Field(sa_column=Column(Text, nullable=False))
    snapshot: str | None = Field(default=None, sa_column=Column(Text))


class Outbox(SQLModel, table=True):
    """A change still to be sent to JetStream: a dispatch, a cancel, or the removal of a withdrawn run's snapshot."""

    __tablename__ = "outbox"
    __table_args__ = (
        Index("ix_outbox_due", "due_at"),
        _partial_index("ix_outbox_due_since", "due_since", where=TAKEN),
    )

    id: int | None = Field(default=None, sa_column=Column(_Serial, primary_key=True, autoincrement=True))
    kind: str = Field(sa_column=Column(String(16), nullable=False))
    run_id: str = Field(sa_column=Column(String(64), nullable=False, index=True))
    dispatch: int = Field(sa_column=Column(Integer, nullable=False))
    # When the relay takes the row. Taking it sets a later time, before which no other process sends it.
    due_at: float = Field(sa_column=Column(Float(53), nullable=False))
    # When the row was due at first; null: it was not taken yet.
    due_since: float | None = Field(default=None, sa_column=Column(Float(53)))


class Attempt(SQLModel, table=True):
    """An attempt that ended while its run went on. The last attempt of a run is in the row of the run."""

    __tablename__ = "attempts"

    run_id: str = Field(sa_column=Column(String(64), primary_key=True))
    attempt: int = Field(sa_column=Column(Integer, primary_key=True, autoincrement=False))
    outcome: str = Field(sa_column=Column(String(16), nullable=False))
    worker_id: str | None = Field(default=None, sa_column=Column(String(255)))
    started_at: float | None = Field(default=None, sa_column=Column(Float(53)))
    ended_at: float = Field(sa_column=Column(Float(53), nullable=False))
    error: str | None = Field(default=None, sa_column=Column(Text))
    # The wheels it ran with, as JSON; null: none.
    wheels: str | None = Field(default=None, sa_column=Column(Text))


class Decision(SQLModel, table=True):
    """A decision about a run, with its reason."""

    __tablename__ = "decisions"
    __table_args__ = (Index("ix_decisions_run", "run_id", "id"),)

    id: int | None = Field(default=None, sa_column=Column(_Serial, primary_key=True, autoincrement=True))
    run_id: str = Field(sa_column=Column(String(64), nullable=False))
    at: float = Field(sa_column=Column(Float(53), nullable=False))
    kind: str = Field(sa_column=Column(String(32), nullable=False))
    attempt: int = Field(sa_column=Column(Integer, nullable=False))
    reason: str = Field(sa_column=Column(Text, nullable=False))


class IdempotencyKey(SQLModel, table=True):
    """A submit with an idempotency key: the fingerprint of the request, and the answer."""

    __tablename__ = "idempotency_keys"
    __table_args__ = (Index("ix_idempotency_keys_created", "created_at"),)

    tenant_id: str = Field(sa_column=Column(String(128), primary_key=True))
    key: str = Field(sa_column=Column(String(255), primary_key=True))
    # SHA-256 of the request.
    fingerprint: str = Field(sa_column=Column(String(64), nullable=False))
    # The run ids in the answer, as JSON.
    run_ids: str = Field(sa_column=Column(Text, nullable=False))
    created_at: float = Field(sa_column=Column(Float(53), nullable=False))


class DeadLetterRow(SQLModel, table=True):
    """A dead letter of the stream, kept after the stream has dropped it."""

    __tablename__ = "dead_letters"
    __table_args__ = (
        Index("ix_dead_letters_tenant", "tenant_id", "state", "id"),
        Index("ix_dead_letters_fingerprint", "tenant_id", "fingerprint", "id"),
        Index("ix_dead_letters_run", "run_id", "id"),
        Index("ix_dead_letters_age", "state", "at"),
    )

    id: int | None = Field(default=None, sa_column=Column(_Serial, primary_key=True, autoincrement=True))
    # Identifies the letter, however often it is delivered.
    message_id: str = Field(sa_column=Column(String(255), nullable=False, unique=True))
    tenant_id: str = Field(sa_column=Column(String(128), nullable=False))
    run_id: str | None = Field(default=None, sa_column=Column(String(64)))
    flow_name: str | None = Field(default=None, sa_column=Column(String(200)))
    tag: str | None = Field(default=None, sa_column=Column(String(64)))
    reason: str = Field(sa_column=Column(String(64), nullable=False))
    error: str | None = Field(default=None, sa_column=Column(Text))
    error_type: str = Field(sa_column=Column(String(200), nullable=False))
    # Letters of one kind share it: reason, flow and type of error.
    fingerprint: str = Field(sa_column=Column(String(32), nullable=False))
    worker_id: str | None = Field(default=None, sa_column=Column(String(255)))
    attempt: int | None = Field(default=None, sa_column=Column(Integer))
    num_delivered: int | None = Field(default=None, sa_column=Column(Integer))
    subject: str | None = Field(default=None, sa_column=Column(String(255)))
    at: float = Field(sa_column=Column(Float(53), nullable=False))
    # "open"; "requeued" once its run was queued again; "deleted": kept but not shown any more.
    state: str = Field(sa_column=Column(String(16), nullable=False))
    requeued_at: float | None = Field(default=None, sa_column=Column(Float(53)))
    requeued_by: str | None = Field(default=None, sa_column=Column(String(128)))


class DeadLetterGroup(SQLModel, table=True):
    """The number of open letters of one group, updated with every change."""

    __tablename__ = "dead_letter_groups"
    __table_args__ = (Index("ix_dead_letter_groups_newest", "tenant_id", "last_at"),)

    tenant_id: str = Field(sa_column=Column(String(128), primary_key=True))
    fingerprint: str = Field(sa_column=Column(String(32), primary_key=True))
    reason: str = Field(sa_column=Column(String(64), nullable=False))
    flow_name: str | None = Field(default=None, sa_column=Column(String(200)))
    error_type: str = Field(sa_column=Column(String(200), nullable=False))
    error: str | None = Field(default=None, sa_column=Column(Text))
    total: int = Field(sa_column=Column(BigInteger, nullable=False))
    first_at: float = Field(sa_column=Column(Float(53), nullable=False))
    last_at: float = Field(sa_column=Column(Float(53), nullable=False))


class RunCount(SQLModel, table=True):
    """The number of a tenant's runs in each status, updated with every change so that rows are never counted."""

    __tablename__ = "run_counts"

    tenant_id: str = Field(sa_column=Column(String(128), primary_key=True))
    status: RunStatus = Field(sa_column=Column(_Status, primary_key=True))
    total: int = Field(sa_column=Column(BigInteger, nullable=False))


class FlowCount(SQLModel, table=True):
    """The number of a tenant's runs by flow, tag and status, for the totals of filtered lists."""

    __tablename__ = "flow_counts"

    tenant_id: str = Field(sa_column=Column(String(128), primary_key=True))
    flow_name: str = Field(sa_column=Column(String(200), primary_key=True))
    tag: str = Field(sa_column=Column(String(64), primary_key=True))
    status: RunStatus = Field(sa_column=Column(_Status, primary_key=True))
    total: int = Field(sa_column=Column(BigInteger, nullable=False))


class Secret(SQLModel, table=True):
    """A secret that all replicas of the service share."""

    __tablename__ = "secrets"

    name: str = Field(sa_column=Column(String(64), primary_key=True))
    value: str = Field(sa_column=Column(String(255), nullable=False))


# The same tables for SQLAlchemy's expression language, in which the batches are written.
runs: Table = Run.__table__  # type: ignore[attr-defined]
documents: Table = RunDocument.__table__  # type: ignore[attr-defined]
outbox: Table = Outbox.__table__  # type: ignore[attr-defined]
counts: Table = RunCount.__table__  # type: ignore[attr-defined]
attempts: Table = Attempt.__table__  # type: ignore[attr-defined]
decisions: Table = Decision.__table__  # type: ignore[attr-defined]
idempotency_keys: Table = IdempotencyKey.__table__  # type: ignore[attr-defined]
dead_letters: Table = DeadLetterRow.__table__  # type: ignore[attr-defined]
dead_letter_groups: Table = DeadLetterGroup.__table__  # type: ignore[attr-defined]
flow_counts: Table = FlowCount.__table__  # type: ignore[attr-defined]
secrets: Table = Secret.__table__  # type: ignore[attr-defined]
