"""Synced wheels: which, where, how they are installed."""
