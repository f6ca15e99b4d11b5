"""The embedded stack: starts, watches and stops NATS, the services, the gateway and workers."""
