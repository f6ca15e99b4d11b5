"""`metrics`: the numbers of the fleet, as Prometheus reads them."""

from ..parser import CommandParser
from ..session import Session


def add_metrics(parser: CommandParser) -> None:
    """It has no arguments of its own."""


def metrics(session: Session) -> int:
    session.out.raw(session.client.get_metrics())
    return 0
