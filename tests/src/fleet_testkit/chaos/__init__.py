"""Workers, loads and histories for tests that break parts of a fleet while it works."""
