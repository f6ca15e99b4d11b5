"""What a run did and said: its events and the output of its tasks."""
