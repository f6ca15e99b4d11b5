"""The data folder of a stack: the paths of its files and unix sockets, and their permissions."""

import contextlib
import hashlib
import os
import shlex
import stat
import tempfile
from pathlib import Path

from fleet_contracts.names import kv_stream

from ..errors import LaunchError

# The kernel takes 107 bytes on Linux, fewer elsewhere; the gateway refuses more than this.
_MAX_SOCKET_PATH_BYTES = 100
_LONGEST_SOCKET_NAME = "workers-api.sock"
_OF_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_ROTATE_LOG_BYTES = 10 * 1024 * 1024


class DataFolder:
    def __init__(self, path: Path) -> None:
        self.path = path = path.expanduser().absolute()
        self.lock = path / "fleet.lock"
        self.state = path / "fleet.json"
        # The settings of the last start that the next one must not drop unnoticed.
        self.last_start = path / "last-start.json"
        self.logs = path / "logs"
        self.runs_database = path / "runs.db"
        self.gateway = path / "gateway"
        self.gateway_temp = self.gateway / "temp"
        self.nats_store = path / "nats"
        # The libraries that flows folders ask for.
        self.libraries = path / "libraries"
        self.nats_config = path / "nats.conf"
        # The accounts and users that the NATS configuration includes; only if the stack starts NATS itself.
        self.nats_users = path / "nats-users.conf"
        self.nats_port = path / "nats.port"
        self.credentials = path / "credentials"
        # Only if the operator has set no secret.
        self.gateway_secret = self.credentials / "gateway.secret"
        # The wire names that the stack was started with; only while its parts have NATS users.
        self.wire_names = self.credentials / "names.json"

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
        """The folder of the unix sockets: inside this one, or a private temporary folder if that path is too long."""
        inside = self.path / "run"
        if len(os.fsencode(inside / _LONGEST_SOCKET_NAME)) <= _MAX_SOCKET_PATH_BYTES:
            return inside
        return Path(tempfile.gettempdir()) / f"pyoco-fleet-{os.getuid()}-{self.fingerprint}"

    def command(self, arguments: str) -> str:
        """The `./fleet` command line for the stack of this folder."""
        elsewhere = "" if self.path == Path(".fleet").absolute() else f" --data-dir {shlex.quote(str(self.path))}"
        return f"./fleet {arguments}{elsewhere}"

    def log(self, part: str) -> Path:
        return self.logs / f"{part}.log"

    def socket(self, part: str) -> Path:
        return self.sockets / f"{part}.sock"

    def worker(self, worker_id: str) -> Path:
        return self.path / "workers" / worker_id

    def prepare(self) -> str | None:
        """Make the folder, closed to other users; return a sentence if it was open to them before."""
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
        """Make an empty folder for the sockets that only this user may enter."""
        self.sockets.mkdir(mode=0o700, exist_ok=True)
        entry = self.sockets.lstat()
        if self.sockets.is_symlink() or entry.st_uid != os.getuid():
            raise LaunchError(f"{self.sockets} belongs to somebody else; remove it or choose a shorter --data-dir")
        self.sockets.chmod(0o700)
        remove_sockets(self.sockets, keep_folder=True)

    def rotate_log(self, part: str) -> None:
        """Rotate a large log of earlier starts; one older generation is kept."""
        log = self.log(part)
        if log.exists() and log.stat().st_size > _ROTATE_LOG_BYTES:
            log.replace(log.with_suffix(".log.1"))


def remove_sockets(folder: Path, *, keep_folder: bool = False) -> None:
    for leftover in folder.glob("*.sock"):
        leftover.unlink(missing_ok=True)
    if not keep_folder:
        # A folder with other files in it stays.
        with contextlib.suppress(OSError):
            folder.rmdir()
