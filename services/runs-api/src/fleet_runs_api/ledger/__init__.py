"""The ledger: tables, connection, group commit, reads, migrations."""
