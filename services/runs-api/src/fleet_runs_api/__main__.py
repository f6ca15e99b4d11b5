"""`python -m fleet_runs_api` starts the service."""

from .main import main

main()
