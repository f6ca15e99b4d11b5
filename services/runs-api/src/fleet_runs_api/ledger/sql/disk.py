"""Watches the disk of a SQLite ledger: no new runs are accepted when it is nearly full.

In the embedded stack NATS's store and the logs are on the same disk.
"""

import asyncio
import logging
import time
from math import isnan, nan
from pathlib import Path

from fleet_kit.files.disk import DiskLimits, free_bytes, in_mib

from ...errors import DiskFull

logger = logging.getLogger(__name__)

_LOOK_SECONDS = 2.0
_REPEAT_SECONDS = 600.0


class LedgerDisk:
    def __init__(self, folder: Path | None, limits: DiskLimits) -> None:
        """Without a folder (the database is a server) there is nothing to watch."""
        self._folder = folder
        self._limits = limits
        self._logged = logging.INFO
        self._logged_at = 0.0

    def free_bytes(self) -> float:
        """The free space of the disk; NaN if it is not known."""
        try:
            return nan if self._folder is None else free_bytes(self._folder)
        except OSError:
            return nan

    @property
    def full_because(self) -> str | None:
        """Why no new runs are accepted; None while there is enough space."""
        free, needed = self.free_bytes(), self._limits.disk_free_min_bytes
        if free < needed:
            return f"{in_mib(int(free))} are free on the data disk, {in_mib(needed)} are needed"
        return None

    def require(self) -> None:
        """Raise DiskFull if there is not enough space for new runs."""
        if (reason := self.full_because) is not None:
            raise DiskFull(f"no space left on the data disk ({reason}); free some and try again", reason=reason)

    async def run(self, stop: asyncio.Event) -> None:
        """Log when space gets scarce, when it is used up, and when there is enough again."""
        while not stop.is_set():
            self.log_space(time.monotonic())
            await asyncio.sleep(_LOOK_SECONDS)

    def log_space(self, now: float) -> None:
        free, limits = self.free_bytes(), self._limits
        if isnan(free):
            return
        if free < limits.disk_free_min_bytes:
            level, sentence = logging.ERROR, "no new runs are accepted until some is freed"
        elif free < limits.disk_free_warn_bytes:
            level = logging.WARNING
            sentence = f"below {in_mib(limits.disk_free_min_bytes)} no new runs are accepted"
        else:
            level, sentence = logging.INFO, "that is enough again"
        if level == self._logged and (level == logging.INFO or now - self._logged_at < _REPEAT_SECONDS):
            return
        self._logged, self._logged_at = level, now
        logger.log(level, "%s are free on the data disk: %s", in_mib(int(free)), sentence)
