"""Accepting what callers ask for: submits, workflows, cancels."""
