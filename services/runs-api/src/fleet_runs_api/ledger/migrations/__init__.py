"""The schema's history, one file per step."""

# The newest step; a ledger that is there already starts without loading the migration machinery.
HEAD = "0007"
