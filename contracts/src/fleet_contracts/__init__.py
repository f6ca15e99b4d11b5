"""The wire contract: messages, names and ids that all processes share."""
