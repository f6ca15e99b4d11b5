"""Accepts requests of callers: submits, workflow files, cancels."""
