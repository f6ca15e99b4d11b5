"""The worker's own flows: the copy of their code that runners load, their libraries and variables, and reloads."""
