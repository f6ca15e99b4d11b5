"""`python -m fleet_workers_api` is the console script."""

from .main import main

main()
