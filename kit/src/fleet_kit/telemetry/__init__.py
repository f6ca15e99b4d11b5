"""Metrics, traces and the inside port for them."""
