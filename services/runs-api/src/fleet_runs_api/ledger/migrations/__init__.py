"""The migrations of the schema, one file per step."""

# The newest step. If the ledger has it already, the service starts without loading Alembic.
HEAD = "0007"
