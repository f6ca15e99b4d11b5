"""Finds and loads flows, and says what they take and offer."""
