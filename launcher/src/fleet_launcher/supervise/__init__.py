"""Supervision of processes: start, health checks, restart, stop."""
