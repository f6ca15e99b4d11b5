"""A whole embedded stack, started and stopped as a user does it, that a test may kill parts of."""

import os
import sqlite3
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil

from fleet_contracts.names import HEADER_FROM_GATEWAY
from fleet_launcher.commands.status import status_document
from fleet_launcher.data_dir.folder import DataFolder
from fleet_launcher.data_dir.state import present_state

from .log_check import check_log_lines, whole_lines
from .nats_server import free_port
from .nats_users import remember_stack
from .programs import run_program
from .waiting import wait_until

_COMMAND_SECONDS = 120


class Stack:
    """`with Stack(tmp_path / "data") as stack: stack.client.post("/runs", …)`"""

    def __init__(
        self,
        data_dir: Path,
        *options: str,
        port: int | None = None,
        with_nats: bool = True,
        with_worker: bool = True,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.data_dir = data_dir
        self.port = port or free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.client = httpx.Client(base_url=self.url, timeout=30)
        self._options = [
            *(["--with-nats"] if with_nats else []),
            *(["--with-worker"] if with_worker else []),
            *options,
        ]
        # A developer's own .env and PYOCO_ settings are not part of a test.
        outside = {name: value for name, value in os.environ.items() if not name.startswith("PYOCO_")}
        self.env = {**outside, "PYOCO_LOAD_DOTENV": "0", **(env or {})}
        self._launcher: psutil.Process | None = None
        # Every process ever seen in this stack: none of them may be left at the end.
        self._seen: set[psutil.Process] = set()

    def __enter__(self) -> "Stack":
        self.up()
        return self

    def __exit__(self, *_: object) -> None:
        self.down()

    def up(self) -> None:
        started = self.run("up", *self._options, "--port", str(self.port), "--detach")
        assert started.returncode == 0, f"{started.stderr}\n{started.stdout}\n{self._all_logs()}"
        self._launcher = psutil.Process(self.status()["launcher_pid"])
        self._remember()

    def down(self) -> None:
        """Stop the stack; fails when anything of it is left."""
        self._remember()
        self.client.close()
        self.client = httpx.Client(base_url=self.url, timeout=30)
        if self._launcher is None:
            return
        stopped = self.run("down")
        assert stopped.returncode == 0, f"{stopped.stderr}\n{stopped.stdout}"
        left = [process for process in self._seen if is_alive(process)]
        for process in left:
            process.kill()
        assert not left, f"processes were left running: {left}"
        assert not list(self.data_dir.glob("run/*")), "sockets were left"
        assert not (self.data_dir / "fleet.lock").exists(), "the lock was left"
        assert not (self.data_dir / "fleet.json").exists(), "the state file was left"
        self._launcher = None
        self.check_logs()

    def check_logs(self) -> int:
        """Check all log lines of the stack against the log contract; return how many there were."""
        if self.env.get("PYOCO_LOG_FORMAT", "json") != "json":
            return 0
        secrets = {file.read_text().strip() for file in (self.data_dir / "credentials").rglob("*.secret")}
        logs = sorted((self.data_dir / "logs").glob("*.log*"))
        return sum(check_log_lines(whole_lines(log), of=str(log), also_secret=secrets) for log in logs)

    def run(self, command: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
        """Run a command of pyoco-server on this stack's data dir."""
        return self._execute("fleet_launcher.cli:main", command, "--data-dir", str(self.data_dir), *arguments)

    def _execute(self, *command: str) -> "subprocess.CompletedProcess[str]":
        return run_program(command, env=self.env, timeout=_COMMAND_SECONDS)

    def status(self) -> dict[str, Any]:
        """The document of `status --json`, without starting a process."""
        return status_document(present_state(DataFolder(self.data_dir)))

    @property
    def parts(self) -> dict[str, dict[str, Any]]:
        """The parts in `status --json`, by name."""
        return {part["name"]: part for part in self.status()["parts"]}

    def service_client(self, name: str, *, knows_secret: bool = True) -> httpx.Client:
        """A client that bypasses the gateway; with or without the gateway's secret."""
        socket = str(self.parts[name]["address"]).removeprefix("unix:")
        return httpx.Client(
            transport=httpx.HTTPTransport(uds=socket),
            base_url=f"http://{name}",
            headers={HEADER_FROM_GATEWAY: self.gateway_secret} if knows_secret else {},
            timeout=30,
        )

    @property
    def gateway_secret(self) -> str:
        return (self.data_dir / "credentials" / "gateway.secret").read_text().strip()

    def credentials(self, role: str) -> Path:
        return self.data_dir / "credentials" / f"{role}.nk"

    def send_away(self, worker_id: str) -> None:
        removed = self.run("worker-credentials", "--remove", worker_id)
        assert removed.returncode == 0, removed.stderr

    def admin(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        return self._execute("fleet_auth.admin.cli:main", *arguments, "--data-dir", str(self.data_dir))

    @property
    def nats_url(self) -> str:
        url = str(self.parts["nats"]["address"])
        remember_stack(url, self.data_dir)
        return url

    def pid(self, name: str) -> int:
        pid = self.parts[name]["pid"]
        assert pid is not None, f"{name} does not run"
        return int(pid)

    def processes(self) -> dict[str, psutil.Process]:
        return {name: psutil.Process(part["pid"]) for name, part in self.parts.items()}

    def kill(self, name: str) -> int:
        """Send SIGKILL and wait until the process is gone; return its pid."""
        self._remember()
        process = psutil.Process(self.pid(name))
        process.kill()
        wait_until(lambda: not is_alive(process), what=f"{name} gone")
        return process.pid

    def wait_restarted(self, name: str, *, before: int, within: float = 30.0) -> int:
        """Wait until the part has a process other than the one it had before; its pid."""

        def other_pid() -> int | None:
            pid = self.parts[name]["pid"]
            return pid if pid != before else None

        pid = wait_until(other_pid, within=within, what=f"{name} restarted")
        assert pid is not None
        return pid

    def wait_healthy(self, *, within: float = 30.0) -> None:
        wait_until(lambda: self.status()["state"] == "running", within=within, what="every part healthy")
        self._remember()

    def log(self, name: str) -> str:
        return (self.data_dir / "logs" / f"{name}.log").read_text(errors="replace")

    def logs(self) -> dict[str, str]:
        return {file.stem: file.read_text(errors="replace") for file in (self.data_dir / "logs").glob("*.log")}

    def written(self) -> Iterator[tuple[str, bytes]]:
        for file in self.data_dir.rglob("*"):
            if file.is_file():
                yield str(file), file.read_bytes()

    def ledger_rows(self, query: str) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(f"file:{self.data_dir / 'runs.db'}?mode=ro", uri=True)) as ledger:
            return ledger.execute(query).fetchall()

    @contextmanager
    def ledger_locked(self) -> Iterator[None]:
        with closing(sqlite3.connect(self.data_dir / "runs.db", timeout=30, isolation_level=None)) as ledger:
            ledger.execute("BEGIN IMMEDIATE")
            yield
            ledger.execute("ROLLBACK")

    def _remember(self) -> None:
        """Note every process of the stack, the launcher's and all descendants'."""
        try:
            if self._launcher is not None:
                self._seen |= {self._launcher, *self._launcher.children(recursive=True)}
        except psutil.NoSuchProcess:
            return

    def _all_logs(self) -> str:
        return "\n".join(f"--- {name}\n{said[-2000:]}" for name, said in sorted(self.logs().items()))


def is_alive(process: psutil.Process) -> bool:
    """Whether a process runs; a zombie does not, because its parent may be gone."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
