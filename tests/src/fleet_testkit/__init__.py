"""Real parts for tests, and waiting for conditions instead of sleeping."""
