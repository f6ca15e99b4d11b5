"""Folds snapshots from KV into the ledger, with the history of attempts and decisions."""
