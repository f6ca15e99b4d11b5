"""The user that runners run as, and their environment: the agent's, without the fleet's settings and tokens."""

import grp
import os
import pwd
import re
import stat
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

# Set by the launcher or `pool/leftovers.py`, to find all processes that a worker and its flows have started.
_MARK = "PYOCO_FLEET_PART"
# The headers of the span exporter: collectors want their tokens there, and flows must not see these.
_TOKENS = re.compile(r"OTEL_EXPORTER_OTLP_([A-Z]+_)?HEADERS")


@dataclass(frozen=True, slots=True)
class RunnerAccount:
    """A user of this machine that runners run as. Only root can start processes as another user."""

    name: str
    uid: int
    gid: int
    groups: list[int]
    home: str

    @classmethod
    def named(cls, name: str) -> Self:
        """Look up the user. Raises ValueError if runners cannot be run as this user."""
        try:
            found = pwd.getpwnam(name)
        except KeyError:
            raise ValueError("this machine has no such user; make it, or name another") from None
        if os.geteuid() != 0:
            raise ValueError("only a worker that runs as root can run its runners as somebody else; unset it")
        groups = [group.gr_gid for group in grp.getgrall() if name in group.gr_mem]
        return cls(name, found.pw_uid, found.pw_gid, groups, found.pw_dir)

    def can_reach(self, folder: Path) -> bool:
        """Whether the user may enter the folder and all folders above it, as far as they exist."""
        places = (folder.absolute(), *folder.absolute().parents)
        return all(self._may_enter(place.stat()) for place in places if place.exists())

    def _may_enter(self, place: os.stat_result) -> bool:
        if place.st_uid == self.uid:
            return bool(place.st_mode & stat.S_IXUSR)
        if place.st_gid in (self.gid, *self.groups):
            return bool(place.st_mode & stat.S_IXGRP)
        return bool(place.st_mode & stat.S_IXOTH)


@dataclass(frozen=True, slots=True)
class RunnerStart:
    """The user and the environment that runner processes are started with."""

    # Variables of the fleet that workflow files may read.
    env_allow: Collection[str] = ()
    # None: the agent's own user.
    account: RunnerAccount | None = None
    # Variables for the runners alone.
    env: Mapping[str, str] = field(default_factory=dict, repr=False)

    def options(self, environ: Mapping[str, str], *, runs_dir: Path) -> dict[str, Any]:
        """Keyword arguments for Popen."""
        env = self.environment(environ)
        if (account := self.account) is None:
            return {"env": env | dict(self.env)}
        env |= {"HOME": account.home, "USER": account.name, "LOGNAME": account.name}
        return {
            "env": env | dict(self.env),
            "user": account.uid,
            "group": account.gid,
            "extra_groups": account.groups,
            "umask": 0o077,
            "cwd": None if account.can_reach(Path.cwd()) else runs_dir,
        }

    def environment(self, environ: Mapping[str, str]) -> dict[str, str]:
        """The variables that are not the fleet's own."""
        return {name: value for name, value in environ.items() if not self._is_fleet_variable(name)}

    def _is_fleet_variable(self, name: str) -> bool:
        is_setting = name.startswith("PYOCO_") and name != _MARK and name not in self.env_allow
        return is_setting or _TOKENS.fullmatch(name) is not None


AS_THE_AGENT = RunnerStart()
