"""The launcher's error: its message is one sentence that says what to do."""

from fleet_kit.settings import SettingsError


class LaunchError(Exception):
    """The stack cannot be started, or what was asked of it cannot be done."""


# Reported as one sentence, without a traceback. An OSError is about a file in the data dir and names it.
FAILURES = (LaunchError, SettingsError, OSError)
