"""Synced wheels: choosing, storing and installing them."""
