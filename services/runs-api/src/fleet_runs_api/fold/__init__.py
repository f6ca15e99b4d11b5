"""From JetStream to the ledger: snapshots folded in, history of attempts and decisions."""
