"""A task that workflow files can use by its name."""


def shout(text="hello"):
    return text.upper()


def register(registry):
    """Pyoco calls this for every entry point of the group `pyoco.tasks`."""
    registry.register_callable(shout, name="greeting/shout")
