"""Reads: one run, lists, timeline."""
