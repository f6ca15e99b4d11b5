"""The fleet and Prometheus in containers."""
