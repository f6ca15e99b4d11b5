"""Alembic's entry: runs the migrations on the connection it is given."""

from alembic import context
from sqlmodel import SQLModel

from fleet_runs_api.ledger import tables

assert tables.Run.metadata is SQLModel.metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=SQLModel.metadata,
    render_as_batch=True,
    compare_type=True,
)
with context.begin_transaction():
    context.run_migrations()
