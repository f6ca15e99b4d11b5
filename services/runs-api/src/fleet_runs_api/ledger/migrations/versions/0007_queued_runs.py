"""Runs whose job lies in the queue, in the order of their jobs."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

_QUEUED = sa.text("status = 'PENDING' AND job_sequence IS NOT NULL")


def upgrade() -> None:
    op.create_index("ix_runs_queued", "runs", ["tag", "job_sequence"], sqlite_where=_QUEUED, postgresql_where=_QUEUED)


def downgrade() -> None:
    op.drop_index("ix_runs_queued", "runs")
