"""The ledger: runs, their documents, the outbox, the counters."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_Serial = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_UNFINISHED = sa.text("finished_at IS NULL")
_HELD = sa.text("status IN ('RUNNING', 'CANCELLING')")


def upgrade() -> None:
    op.create_table(
        "runs",
        sa.Column("seq", _Serial, primary_key=True, autoincrement=True),
        sa.Column("run_id", sa.String(64), nullable=False, unique=True),
        sa.Column("tenant_id", sa.String(128), nullable=False),
        sa.Column("api_key_id", sa.String(128)),
        sa.Column("flow_name", sa.String(200), nullable=False),
        sa.Column("tag", sa.String(64), nullable=False),
        sa.Column("tags", sa.Text(), nullable=False),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("worker_id", sa.String(255)),
        sa.Column("error", sa.Text()),
        sa.Column("reason", sa.String(64)),
        sa.Column("workflow_yaml_sha256", sa.String(64)),
        sa.Column("submitted_at", sa.Float(53), nullable=False),
        sa.Column("updated_at", sa.Float(53), nullable=False),
        sa.Column("heartbeat_at", sa.Float(53), nullable=False),
        sa.Column("started_at", sa.Float(53)),
        sa.Column("finished_at", sa.Float(53)),
        sa.Column("revision", sa.BigInteger(), nullable=False),
        sa.Column("dispatch", sa.Integer(), nullable=False),
        sa.Column("job_sequence", sa.BigInteger()),
        sa.Column("checked_at", sa.Float(53), nullable=False),
    )
    op.create_index("ix_runs_tenant", "runs", ["tenant_id", "seq"])
    op.create_index("ix_runs_tenant_status", "runs", ["tenant_id", "status", "seq"])
    op.create_index("ix_runs_tenant_flow", "runs", ["tenant_id", "flow_name", "seq"])
    op.create_index("ix_runs_tenant_tag", "runs", ["tenant_id", "tag", "seq"])
    op.create_index(
        "ix_runs_unfinished", "runs", ["checked_at"], sqlite_where=_UNFINISHED, postgresql_where=_UNFINISHED
    )
    op.create_index("ix_runs_held", "runs", ["heartbeat_at"], sqlite_where=_HELD, postgresql_where=_HELD)

    op.create_table(
        "run_documents",
        sa.Column("run_id", sa.String(64), primary_key=True),
        sa.Column("job", sa.Text(), nullable=False),
        sa.Column("snapshot", sa.Text()),
    )
    op.create_table(
        "outbox",
        sa.Column("id", _Serial, primary_key=True, autoincrement=True),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("run_id", sa.String(64), nullable=False),
        sa.Column("dispatch", sa.Integer(), nullable=False),
        sa.Column("due_at", sa.Float(53), nullable=False),
    )
    op.create_index("ix_outbox_due", "outbox", ["due_at"])
    op.create_index("ix_outbox_run_id", "outbox", ["run_id"])
    op.create_table(
        "run_counts",
        sa.Column("tenant_id", sa.String(128), primary_key=True),
        sa.Column("status", sa.String(16), primary_key=True),
        sa.Column("total", sa.BigInteger(), nullable=False),
    )


def downgrade() -> None:
    for table in ("run_counts", "outbox", "run_documents", "runs"):
        op.drop_table(table)
