"""The NATS connection, and KV, object store, pull consumers and streams on top of it."""
