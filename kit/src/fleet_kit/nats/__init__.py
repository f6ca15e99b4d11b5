"""The connection to NATS and what stands on it: KV, objects, pulls, streams."""
