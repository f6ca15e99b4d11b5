"""The timeline of a run: its events and the output of its tasks."""
