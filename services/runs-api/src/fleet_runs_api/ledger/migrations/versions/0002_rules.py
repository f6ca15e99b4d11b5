"""Retries, schedules, deadlines, idempotency keys, dead letters, and what lists are filtered by."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_Serial = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_NEW_COLUMNS = (
    sa.Column("changed_at", sa.Float(53), nullable=False, server_default="0"),
    sa.Column("failures", sa.Integer(), nullable=False, server_default="0"),
    sa.Column("not_before", sa.Float(53)),
    sa.Column("deadline_at", sa.Float(53)),
    sa.Column("reopened", sa.Integer(), nullable=False, server_default="0"),
    sa.Column("rerun_of", sa.String(64)),
    sa.Column("kv_released", sa.Integer(), nullable=False, server_default="0"),
)
_NEW_INDEXES = {
    "ix_runs_tenant_changed": (["tenant_id", "changed_at", "seq"], None),
    "ix_runs_tenant_submitted": (["tenant_id", "submitted_at"], None),
    "ix_runs_tenant_yaml": (["tenant_id", "workflow_yaml_sha256", "seq"], "workflow_yaml_sha256 IS NOT NULL"),
    "ix_runs_deadline": (["deadline_at"], "finished_at IS NULL AND deadline_at IS NOT NULL"),
    "ix_runs_finished": (["finished_at"], "finished_at IS NOT NULL"),
    "ix_runs_in_kv": (["finished_at"], "finished_at IS NOT NULL AND kv_released = 0"),
}
_NEW_TABLES = (
    "attempts",
    "decisions",
    "idempotency_keys",
    "dead_letters",
    "dead_letter_groups",
    "flow_counts",
)


def upgrade() -> None:
    for column in _NEW_COLUMNS:
        op.add_column("runs", column)
    op.execute("UPDATE runs SET changed_at = updated_at")
    for name, (columns, condition) in _NEW_INDEXES.items():
        where = sa.text(condition) if condition else None
        op.create_index(name, "runs", columns, sqlite_where=where, postgresql_where=where)

    op.create_table(
        "attempts",
        sa.Column("run_id", sa.String(64), primary_key=True),
        sa.Column("attempt", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("outcome", sa.String(16), nullable=False),
        sa.Column("worker_id", sa.String(255)),
        sa.Column("started_at", sa.Float(53)),
        sa.Column("ended_at", sa.Float(53), nullable=False),
        sa.Column("error", sa.Text()),
    )
    op.create_table(
        "decisions",
        sa.Column("id", _Serial, primary_key=True, autoincrement=True),
        sa.Column("run_id", sa.String(64), nullable=False),
        sa.Column("at", sa.Float(53), nullable=False),
        sa.Column("kind", sa.String(32), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
    )
    op.create_index("ix_decisions_run", "decisions", ["run_id", "id"])
    op.create_table(
        "idempotency_keys",
        sa.Column("tenant_id", sa.String(128), primary_key=True),
        sa.Column("key", sa.String(255), primary_key=True),
        sa.Column("fingerprint", sa.String(64), nullable=False),
        sa.Column("run_ids", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Float(53), nullable=False),
    )
    op.create_index("ix_idempotency_keys_created", "idempotency_keys", ["created_at"])
    op.create_table(
        "dead_letters",
        sa.Column("id", _Serial, primary_key=True, autoincrement=True),
        sa.Column("message_id", sa.String(255), nullable=False, unique=True),
        sa.Column("tenant_id", sa.String(128), nullable=False),
        sa.Column("run_id", sa.String(64)),
        sa.Column("flow_name", sa.String(200)),
        sa.Column("tag", sa.String(64)),
        sa.Column("reason", sa.String(64), nullable=False),
        sa.Column("error", sa.Text()),
        sa.Column("error_type", sa.String(200), nullable=False),
        sa.Column("fingerprint", sa.String(32), nullable=False),
        sa.Column("worker_id", sa.String(255)),
        sa.Column("attempt", sa.Integer()),
        sa.Column("num_delivered", sa.Integer()),
        sa.Column("subject", sa.String(255)),
        sa.Column("at", sa.Float(53), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("requeued_at", sa.Float(53)),
        sa.Column("requeued_by", sa.String(128)),
    )
    op.create_index("ix_dead_letters_tenant", "dead_letters", ["tenant_id", "state", "id"])
    op.create_index("ix_dead_letters_fingerprint", "dead_letters", ["tenant_id", "fingerprint", "id"])
    op.create_index("ix_dead_letters_run", "dead_letters", ["run_id", "id"])
    op.create_index("ix_dead_letters_age", "dead_letters", ["state", "at"])
    op.create_table(
        "dead_letter_groups",
        sa.Column("tenant_id", sa.String(128), primary_key=True),
        sa.Column("fingerprint", sa.String(32), primary_key=True),
        sa.Column("reason", sa.String(64), nullable=False),
        sa.Column("flow_name", sa.String(200)),
        sa.Column("error_type", sa.String(200), nullable=False),
        sa.Column("error", sa.Text()),
        sa.Column("total", sa.BigInteger(), nullable=False),
        sa.Column("first_at", sa.Float(53), nullable=False),
        sa.Column("last_at", sa.Float(53), nullable=False),
    )
    op.create_index("ix_dead_letter_groups_newest", "dead_letter_groups", ["tenant_id", "last_at"])
    op.create_table(
        "flow_counts",
        sa.Column("tenant_id", sa.String(128), primary_key=True),
        sa.Column("flow_name", sa.String(200), primary_key=True),
        sa.Column("tag", sa.String(64), primary_key=True),
        sa.Column("status", sa.String(16), primary_key=True),
        sa.Column("total", sa.BigInteger(), nullable=False),
    )
    op.execute(
        "INSERT INTO flow_counts (tenant_id, flow_name, tag, status, total) "
        "SELECT tenant_id, flow_name, tag, status, count(*) FROM runs GROUP BY tenant_id, flow_name, tag, status"
    )


def downgrade() -> None:
    for table in reversed(_NEW_TABLES):
        op.drop_table(table)
    for name in _NEW_INDEXES:
        op.drop_index(name, "runs")
    for column in _NEW_COLUMNS:
        op.drop_column("runs", column.name)
