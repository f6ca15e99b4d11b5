"""Held runs in the order in which the ledger has heard of them, by its own clock and not by the workers'."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

_HELD = sa.text("status IN ('RUNNING', 'CANCELLING')")


def upgrade() -> None:
    _replace("ix_runs_held", "ix_runs_held_changed", by="changed_at")


def downgrade() -> None:
    _replace("ix_runs_held_changed", "ix_runs_held", by="heartbeat_at")


def _replace(old: str, new: str, *, by: str) -> None:
    # The drop comes last, because it blocks all reads: they must not be blocked while the new index reads all runs.
    op.create_index(new, "runs", [by], sqlite_where=_HELD, postgresql_where=_HELD)
    op.drop_index(old, "runs")
