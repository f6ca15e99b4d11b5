"""Infrastructure that every process shares: settings, errors, logging, telemetry, HTTP, NATS."""
