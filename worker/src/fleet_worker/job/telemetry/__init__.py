"""Metrics, logs and traces of the worker's jobs."""
