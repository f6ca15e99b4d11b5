"""`python -m fleet_launcher` is `pyoco-server`."""

from .cli import main

main()
