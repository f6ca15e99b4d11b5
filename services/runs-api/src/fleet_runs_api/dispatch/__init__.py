"""From the ledger to JetStream: outbox relay, queues per tag."""
