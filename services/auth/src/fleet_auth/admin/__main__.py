"""`python -m fleet_auth.admin` is the console script."""

from .cli import main

main()
