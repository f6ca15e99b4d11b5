"""Metrics, traces and the internal port that serves them."""
