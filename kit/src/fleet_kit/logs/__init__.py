"""JSON Lines logging: the events of the log contract, masking, rate limits."""
