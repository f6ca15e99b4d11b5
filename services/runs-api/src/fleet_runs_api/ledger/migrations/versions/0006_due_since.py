"""Since when a dispatch is due, however often somebody has taken it and could not send it."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

_TAKEN = sa.text("due_since IS NOT NULL")


def upgrade() -> None:
    op.add_column("outbox", sa.Column("due_since", sa.Float(53)))
    op.create_index("ix_outbox_due_since", "outbox", ["due_since"], sqlite_where=_TAKEN, postgresql_where=_TAKEN)


def downgrade() -> None:
    op.drop_index("ix_outbox_due_since", "outbox")
    op.drop_column("outbox", "due_since")
