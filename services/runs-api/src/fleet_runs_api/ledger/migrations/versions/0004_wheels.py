"""The wheels that each attempt ran with."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("attempts", sa.Column("wheels", sa.Text()))


def downgrade() -> None:
    op.drop_column("attempts", "wheels")
