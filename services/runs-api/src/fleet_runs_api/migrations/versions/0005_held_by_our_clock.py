"""Held runs in the order in which the ledger has heard of them, by its own clock and not by the workers'."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

_HELD = sa.text("status IN ('RUNNING', 'CANCELLING')")


def upgrade() -> None:
    _index_by("changed_at")


def downgrade() -> None:
    _index_by("heartbeat_at")


def _index_by(column: str) -> None:
    op.drop_index("ix_runs_held", "runs")
    op.create_index("ix_runs_held", "runs", [column], sqlite_where=_HELD, postgresql_where=_HELD)
