"""`python -m fleet_wheels_api` is the console script."""

from .main import main

main()
