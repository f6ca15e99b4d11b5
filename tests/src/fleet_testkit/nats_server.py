"""Real nats-servers with JetStream: one of a test's own that it may break, and one that many tests share."""

import itertools
import os
import random
import shutil
import signal
import socket
import subprocess
import sysconfig
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from .process_pause import pause_process, resume_process
from .waiting import wait_until

# Below Linux's ephemeral ports, which an outgoing connection could take before a server listens.
_PORTS = range(10_000, 32_000)
# A process of pytest has every sixteenth port for itself, and gives each one once: servers take a while to listen.
_SHARES = 16


def _own_ports() -> Iterator[int]:
    share = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % _SHARES
    ports = [port for port in _PORTS if port % _SHARES == share]
    # Another run of the tests on this machine begins elsewhere.
    random.shuffle(ports)
    return itertools.cycle(ports)


_own = _own_ports()


def free_port() -> int:
    """A free port that no other test has been given."""
    for port in _own:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError("the ports go round for ever")


def nats_binary() -> str:
    return str(Path(sysconfig.get_path("scripts")) / "nats-server")


class NatsServer:
    """A server that a test may stop, kill, pause, wipe and start again on the same port."""

    def __init__(
        self, folder: Path, *, port: int | None = None, more_config: str = "", jetstream_options: str = ""
    ) -> None:
        self.folder = folder
        self._jetstream_options = jetstream_options
        # Users, TLS and the like; a change takes effect at a start or `reload`.
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

    @contextmanager
    def running(self) -> Iterator["NatsServer"]:
        self.start()
        try:
            yield self
        finally:
            self.kill()

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
        """Pause the server with SIGSTOP: it answers nothing until `resume`."""
        pause_process(self.pid)

    def resume(self) -> None:
        resume_process(self.pid)

    def wipe(self) -> None:
        """Delete the store, as if the disk were lost. Stop the server first."""
        shutil.rmtree(self.store, ignore_errors=True)

    def _write_config(self) -> Path:
        config = self.folder / "nats.conf"
        config.write_text(
            f"listen: 127.0.0.1:{self.port}\n"
            f"jetstream {{ store_dir: {str(self.store)!r}, sync_interval: 1s{self._jetstream_options} }}\n"
            f"{self.more_config}"
        )
        return config

    def _reloads(self) -> int:
        return (self.folder / "nats.log").read_text().count("Reloaded server configuration")

    def _end(self, how: signal.Signals) -> None:
        if self._process is None:
            return
        self._process.send_signal(how)
        # A paused server gets the signal only now, before it can answer anything.
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


class SharedNats(NatsServer):
    """A JetStream account of the test's own on a server that other tests use, too.

    Operations that affect other tests are refused: mark a test that needs them `own_nats`.
    """

    def __init__(self, server: NatsServer, account: str) -> None:
        super().__init__(server.folder, port=server.port)
        self._account = account

    @property
    def url(self) -> str:
        return f"nats://{self._account}:{self._account}@127.0.0.1:{self.port}"

    def start(self) -> None:
        self._refuse("start")

    def reload(self) -> None:
        self._refuse("reload")

    def stop(self) -> None:
        self._refuse("stop")

    def kill(self) -> None:
        self._refuse("kill")

    def pause(self) -> None:
        self._refuse("pause")

    def resume(self) -> None:
        self._refuse("resume")

    def wipe(self) -> None:
        self._refuse("wipe")

    def _refuse(self, verb: str) -> NoReturn:
        raise AssertionError(f"other tests use this nats-server; mark the test with own_nats to {verb} it")


class NatsPool:
    """Hands out JetStream accounts of one running server; a used-up server is replaced by a fresh one.

    Otherwise the streams of finished tests would stay, and be synced to disk, for ever.
    """

    ACCOUNTS = 40

    def __init__(self, new_folder: Callable[[], Path]) -> None:
        self._new_folder = new_folder
        self._server: NatsServer | None = None
        self._left: list[str] = []

    def account(self) -> SharedNats:
        if self._server is None or not self._left:
            self.close()
            self._left = [f"t{number}" for number in range(self.ACCOUNTS)]
            accounts = "".join(
                f"  {name} {{ jetstream: enabled, users: [{{ user: {name}, password: {name} }}] }}\n"
                for name in self._left
            )
            # Streams reserve their maximum size, however little they hold.
            self._server = NatsServer(
                self._new_folder(),
                more_config=f"accounts {{\n{accounts}}}\n",
                jetstream_options=", max_file_store: 100TB",
            )
            self._server.start()
        return SharedNats(self._server, self._left.pop())

    def close(self) -> None:
        if self._server is not None:
            self._server.kill()
            shutil.rmtree(self._server.folder, ignore_errors=True)
            self._server = None
