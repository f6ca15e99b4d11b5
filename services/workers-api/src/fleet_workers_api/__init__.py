"""The workers context: the registry of workers and their states."""
