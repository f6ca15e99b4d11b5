"""A worker of a test's own, started with the public command, that may be stopped, killed and paused."""

import os
import signal
from pathlib import Path

import httpx

from .log_check import check_log_lines, whole_lines
from .nats_users import worker_file
from .process_pause import pause_process, resume_process
from .programs import Program
from .waiting import wait_until


class WorkerProcess:
    """`with WorkerProcess(nats_url, folder, "w1", tag="mine", flows_dir=…) as worker: …`"""

    def __init__(
        self, nats_url: str, folder: Path, worker_id: str, *, tag: str, flows_dir: Path, slots: int = 1, **env: str
    ) -> None:
        self.worker_id = worker_id
        self._nats_url = nats_url
        self._tag = tag
        self._log = folder / f"{worker_id}.log"
        self._command = [
            "fleet_worker.cli:main",
            *("--nats-url", nats_url, "--worker-id", worker_id, "--tags", tag),
            *("--slots", str(slots), "--flows-dir", str(flows_dir)),
        ]
        outside = {name: value for name, value in os.environ.items() if not name.startswith("PYOCO_")}
        self._env = {**outside, "PYOCO_LOAD_DOTENV": "0", "PYOCO_WORKER_DIR": str(folder / worker_id), **env}
        self._process: Program | None = None

    def __enter__(self) -> "WorkerProcess":
        self.start()
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        if not self.is_running:
            return
        if error is not None:
            self.kill()  # the test's own error matters, not how its worker stops
        else:
            self.resume()
            self.stop()

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def wait(self, *, within: float = 30.0) -> int:
        """Wait until the worker exits by itself; return its exit code."""
        assert self._process is not None
        return self._process.wait(timeout=within)

    def start(self) -> None:
        if (seed := worker_file(self._nats_url, self.worker_id, [self._tag])) is not None:
            self._env["PYOCO_NATS_NKEY_FILE"] = str(seed)
        with self._log.open("ab") as log:
            self._process = Program(self._command, env=self._env, stdout=log, stderr=log)

    def wait_registered(self, client: httpx.Client, *, within: float = 30.0) -> None:
        def is_registered() -> bool:
            assert self.is_running, self.log
            return any(worker["worker_id"] == self.worker_id for worker in client.get("/workers").json())

        wait_until(is_registered, within=within, what=f"worker {self.worker_id} registered")

    def stop(self) -> None:
        """Send SIGTERM; the worker must exit with 0 and have kept the log contract."""
        self._signal(signal.SIGTERM)
        assert self._process is not None
        assert self._process.wait(timeout=30) == 0, self.log
        check_log_lines(whole_lines(self._log), of=self.worker_id)

    def kill(self) -> None:
        """Send SIGKILL to the agent; its runners must detect that themselves."""
        self._signal(signal.SIGKILL)
        assert self._process is not None
        self._process.wait(timeout=30)

    def pause(self) -> None:
        """Pause the agent while its runners go on."""
        assert self._process is not None
        pause_process(self._process.pid)

    def resume(self) -> None:
        assert self._process is not None
        resume_process(self._process.pid)

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)
