"""Output of commands: a plain sentence on a terminal, a log line in a container."""

import logging
import os
import sys

from ..settings import FleetSettings
from .setup import configure_logging

logger = logging.getLogger(__name__)


def says_in_log() -> bool:
    """Whether to log: PYOCO_LOG_FORMAT is set to json, as in the images, and stdout is no terminal."""
    return os.environ.get("PYOCO_LOG_FORMAT") == "json" and not sys.stdout.isatty()


def say(sentence: str, *, service: str, component: str) -> None:
    if says_in_log():
        configure_logging(service=service, component=component, settings=FleetSettings.only_of_logging())
        logger.info("%s", sentence)
    else:
        print(sentence)  # noqa: T201 - this is what the command answers


def say_failure(sentence: str, *, program: str, service: str, component: str) -> None:
    if says_in_log():
        configure_logging(service=service, component=component, settings=FleetSettings.only_of_logging())
        logger.critical("%s", sentence)
    else:
        sys.stderr.write(f"{program}: {sentence}\n")
