"""Repairs: sweeper, expiry, retention, unclaimed deliveries."""
