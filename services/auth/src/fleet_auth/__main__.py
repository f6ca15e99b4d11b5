"""`python -m fleet_auth` is the console script."""

from .main import main

main()
