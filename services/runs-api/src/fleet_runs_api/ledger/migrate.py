"""Command that brings the ledger's schema up to date, for deployments that do so before the service starts."""

import logging
import os
import sys

from fleet_contracts.log_events import SERVICE_HTTP
from fleet_kit.logs.setup import configure_logging, failure_fields
from fleet_kit.settings import FleetSettings, SettingsError

from ..errors import LedgerUnavailable
from ..settings import LedgerSettings
from .migrations import HEAD
from .sql.database import Database

logger = logging.getLogger(__name__)


def main() -> None:
    # Only its owner may read a SQLite file.
    os.umask(0o077)
    configure_logging(service=SERVICE_HTTP, component="migrate", settings=FleetSettings.only_of_logging())
    try:
        database = Database(LedgerSettings.load().runs_database_url)
        database.migrate()
        database.dispose()
    except SettingsError as error:
        logger.critical("%s", error, extra=failure_fields(error))
        sys.exit(1)
    except LedgerUnavailable as error:
        logger.critical("%s", error, exc_info=error)
        sys.exit(1)
    logger.info("the ledger's schema is at %s", HEAD)


if __name__ == "__main__":
    main()
