"""The data folder of a stack: where everything lies, and where the unix sockets go."""

import contextlib
import hashlib
import os
import shlex
import stat
import tempfile
from dataclasses import dataclass
from pathlib import Path

from fleet_contracts.names import kv_stream

from ..errors import LaunchError

# The kernel takes 107 bytes on Linux, fewer elsewhere; the gateway refuses more than this.
_MAX_SOCKET_PATH_BYTES = 100
_LONGEST_SOCKET_NAME = "workers-api.sock"
_OF_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_ROTATE_LOG_BYTES = 10 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class DataFolder:
    path: Path

    @classmethod
    def at(cls, path: Path) -> "DataFolder":
        return cls(path.expanduser().absolute())

    @property
    def lock(self) -> Path:
        return self.path / "fleet.lock"

    @property
    def state(self) -> Path:
        return self.path / "fleet.json"

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def nats_store(self) -> Path:
        return self.path / "nats"

    @property
    def nats_config(self) -> Path:
        return self.path / "nats.conf"

    @property
    def nats_users(self) -> Path:
        """What the NATS server is told about its users; only while they are in force."""
        return self.path / "nats-users.conf"

    @property
    def nats_port(self) -> Path:
        return self.path / "nats.port"

    @property
    def runs_database(self) -> Path:
        return self.path / "runs.db"

    @property
    def gateway(self) -> Path:
        return self.path / "gateway"

    @property
    def credentials(self) -> Path:
        return self.path / "credentials"

    @property
    def gateway_temp(self) -> Path:
        return self.gateway / "temp"

    @property
    def wire_names(self) -> Path:
        """Names on the wire as the stack was started with them."""
        return self.credentials / "names.json"

    @property
    def last_start(self) -> Path:
        """What the stack was last started with, as far as the next start must not forget it."""
        return self.path / "last-start.json"

    def has_kept(self, bucket: str) -> bool:
        """Whether the stack's own NATS has ever written anything into this bucket."""
        blocks = self.nats_store.glob(f"jetstream/*/streams/{kv_stream(bucket)}/msgs/*.blk")
        return any(block.stat().st_size for block in blocks)

    @property
    def fingerprint(self) -> str:
        """A short name of this folder, the same at every start."""
        return hashlib.sha256(os.fsencode(self.path)).hexdigest()[:8]

    @property
    def sockets(self) -> Path:
        """Inside the folder, or in a private place with a short path when the folder's own is too long."""
        inside = self.path / "run"
        if len(os.fsencode(inside / _LONGEST_SOCKET_NAME)) <= _MAX_SOCKET_PATH_BYTES:
            return inside
        return Path(tempfile.gettempdir()) / f"pyoco-fleet-{os.getuid()}-{self.fingerprint}"

    def command(self, arguments: str) -> str:
        """What to type to do something with the stack of this folder."""
        elsewhere = "" if self.path == Path(".fleet").absolute() else f" --data-dir {shlex.quote(str(self.path))}"
        return f"./fleet {arguments}{elsewhere}"

    def log(self, part: str) -> Path:
        return self.logs / f"{part}.log"

    def socket(self, part: str) -> Path:
        return self.sockets / f"{part}.sock"

    def worker(self, worker_id: str) -> Path:
        return self.path / "workers" / worker_id

    def prepare(self) -> str | None:
        """Make the folder, for nobody else's eyes; a sentence if it was open to others and is closed now."""
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            closed = self._close()
            self.logs.mkdir(exist_ok=True)
            with tempfile.TemporaryFile(dir=self.path):
                pass
        except OSError as error:
            raise LaunchError(
                f"cannot write to the data dir {self.path} ({error.strerror}); "
                "change its permissions or choose another with --data-dir"
            ) from error
        return closed

    def _close(self) -> str | None:
        entry = self.path.stat()
        if entry.st_uid != os.geteuid():
            raise LaunchError(
                f"the data dir {self.path} belongs to another user, who could read every secret in it; "
                "choose another with --data-dir"
            )
        mode = stat.S_IMODE(entry.st_mode)
        if not mode & _OF_OTHERS:
            return None
        ours = (self.credentials, self.nats_config, self.nats_store, self.runs_database)
        if any(self.path.iterdir()) and not any(path.exists() for path in ours):
            raise LaunchError(
                f"others may enter {self.path}, and what is in it is not of a stack; choose a folder of its own with "
                "--data-dir, or close this one with chmod 700"
            )
        self.path.chmod(mode & ~_OF_OTHERS)
        return f"closed the data dir {self.path} to other users: its mode was {mode:o}"

    def make_sockets(self) -> None:
        """An empty folder for the sockets that only this user may enter."""
        self.sockets.mkdir(mode=0o700, exist_ok=True)
        entry = self.sockets.lstat()
        if self.sockets.is_symlink() or entry.st_uid != os.getuid():
            raise LaunchError(f"{self.sockets} belongs to somebody else; remove it or choose a shorter --data-dir")
        self.sockets.chmod(0o700)
        remove_sockets(self.sockets, keep_folder=True)

    def rotate_log(self, part: str) -> None:
        """Put a large log of earlier starts aside; one older generation is kept."""
        log = self.log(part)
        if log.exists() and log.stat().st_size > _ROTATE_LOG_BYTES:
            log.replace(log.with_suffix(".log.1"))


def remove_sockets(folder: Path, *, keep_folder: bool = False) -> None:
    for leftover in folder.glob("*.sock"):
        leftover.unlink(missing_ok=True)
    if not keep_folder:
        # Whatever else somebody put there stays.
        with contextlib.suppress(OSError):
            folder.rmdir()
