"""The runs service: it accepts runs, knows what became of them, and repairs what got lost on the way."""
