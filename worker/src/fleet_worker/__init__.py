"""The worker: an agent that talks to NATS, and runner processes that execute flows."""
