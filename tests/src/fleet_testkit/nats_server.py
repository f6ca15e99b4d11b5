"""A real nats-server with JetStream that a test may stop, kill, pause, wipe and start again on the same port."""

import shutil
import signal
import socket
import subprocess
import sysconfig
from pathlib import Path

from .standing_still import go_on, stop_still
from .waiting import wait_until


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def nats_binary() -> str:
    return str(Path(sysconfig.get_path("scripts")) / "nats-server")


class NatsServer:
    def __init__(self, folder: Path, *, port: int | None = None, more_config: str = "") -> None:
        self.folder = folder
        # Users, TLS and the like; what is changed here is known after a start or `reload`.
        self.more_config = more_config
        self.port = port or free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process
        return self._process.pid

    @property
    def store(self) -> Path:
        return self.folder / "nats"

    def start(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        config = self._write_config()
        log = (self.folder / "nats.log").open("ab")
        self._process = subprocess.Popen([nats_binary(), "-c", str(config)], stdout=log, stderr=log)
        log.close()
        wait_until(self._answers, within=30, what="nats-server answering")

    def reload(self) -> None:
        """Read `more_config` again without a restart."""
        self._write_config()
        assert self._process
        reloads = self._reloads()
        self._process.send_signal(signal.SIGHUP)
        wait_until(lambda: self._reloads() > reloads, what="nats-server reloaded")

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def pause(self) -> None:
        """From now on it answers nothing."""
        stop_still(self.pid)

    def resume(self) -> None:
        go_on(self.pid)

    def wipe(self) -> None:
        """Lose the disk. Stop the server first."""
        shutil.rmtree(self.store, ignore_errors=True)

    def _write_config(self) -> Path:
        config = self.folder / "nats.conf"
        config.write_text(
            f"listen: 127.0.0.1:{self.port}\njetstream {{ store_dir: {str(self.store)!r}, sync_interval: 1s }}\n"
            f"{self.more_config}"
        )
        return config

    def _reloads(self) -> int:
        return (self.folder / "nats.log").read_text().count("Reloaded server configuration")

    def _end(self, how: signal.Signals) -> None:
        if self._process is None:
            return
        self._process.send_signal(how)
        # A paused server hears of it only now, and says nothing more before.
        self._process.send_signal(signal.SIGCONT)
        self._process.wait(timeout=30)
        self._process = None

    def _answers(self) -> bool:
        assert self._process
        assert self._process.poll() is None, (self.folder / "nats.log").read_text()
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=0.5) as probe:
                return probe.recv(5) == b"INFO "
        except OSError:
            return False
