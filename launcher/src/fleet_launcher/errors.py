"""The launcher's error: its message is one sentence that says what to do."""


class LaunchError(Exception):
    """The stack cannot be started, or what was asked of it cannot be done."""
