"""The data folder of a stack: NATS users, secrets, the lock, and state that outlives a start."""
