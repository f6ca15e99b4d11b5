"""The ways in which a measurement can fail, each with a sentence."""


class BenchFailed(Exception):
    """A measurement could not be made; the message says why."""
