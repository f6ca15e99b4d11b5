"""What a worker counts, logs and traces."""
