"""Brings the ledger's schema up to date and ends: for whoever wants that done before the service starts."""

import sys

from fleet_kit.settings import SettingsError

from .database import Database
from .errors import LedgerUnavailable
from .migrations import HEAD
from .settings import LedgerSettings


def main() -> None:
    try:
        database = Database(LedgerSettings.load().runs_database_url)
        database.migrate()
        database.dispose()
    except (SettingsError, LedgerUnavailable) as error:
        sys.exit(f"pyoco-fleet-runs-migrate: {error}")
    sys.stdout.write(f"the ledger's schema is at {HEAD}\n")


if __name__ == "__main__":
    main()
