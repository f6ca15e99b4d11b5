"""What can go wrong with a measurement, each told in a sentence."""


class BenchFailed(Exception):
    """A measurement could not be made; the message says why."""
