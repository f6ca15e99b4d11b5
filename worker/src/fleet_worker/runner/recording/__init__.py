"""Records what a run does, says and returns."""
