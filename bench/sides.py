"""The two sides, started as users start them: our stack, and the peer with a NATS of the same kind."""

import contextlib
import json
import os
import signal
import subprocess
import sysconfig
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx

from fleet_testkit.nats_server import NatsServer, free_port
from fleet_testkit.nats_users import worker_file
from fleet_testkit.stack import Stack
from fleet_testkit.waiting import wait_until
from fleet_testkit.wire import Wire

from .connection import HOST
from .errors import BenchFailed
from .peer_env import PeerEnv
from .progress import say

_FLOWS = Path(__file__).parent / "flows"
_START_SECONDS = 30.0
_STOP_SECONDS = 15.0


class Process:
    """A process of the bench's own, with a log; stopped, or else killed, at the end."""

    def __init__(self, command: Sequence[str], *, folder: Path, name: str, env: Mapping[str, str]) -> None:
        self.name = name
        self._log = folder / f"{name}.log"
        # Whatever the environment of the caller says is not part of the measurement.
        outside = {key: value for key, value in os.environ.items() if not key.startswith("PYOCO_")}
        with self._log.open("ab") as log:
            # A session of its own: Ctrl-C reaches the bench only, which stops everything in order.
            self._process = subprocess.Popen(
                command,
                env={**outside, "PYOCO_LOAD_DOTENV": "0", **env},
                cwd=folder,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def check(self) -> None:
        """BenchFailed if it has ended by itself."""
        if self._process.poll() is not None:
            last = self._log.read_text(errors="replace").strip()[-500:]
            raise BenchFailed(f"{self.name} ended with {self._process.returncode}: {last}")

    def pause(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(_STOP_SECONDS)

    def stop(self) -> None:
        self.resume()
        self._process.terminate()
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()


class Side(ABC):
    """What a measurement needs to know of either side."""

    def __init__(self, folder: Path, port: int) -> None:
        self.folder = folder
        self.port = port
        # For what is not measured; it connects when it is first used.
        self.client = httpx.Client(base_url=f"http://{HOST}:{port}", timeout=_START_SECONDS)
        self._workers = 0

    @property
    @abstractmethod
    def nats_url(self) -> str: ...

    @property
    @abstractmethod
    def can_work(self) -> bool:
        """Whether workers can be started."""

    @abstractmethod
    def pids(self) -> dict[str, int]:
        """The processes without the workers, by name."""

    @abstractmethod
    def _worker_command(self, worker_id: str, tags: str) -> list[str]: ...

    @abstractmethod
    def program(self, name: str) -> str:
        """A program of its environment."""

    @property
    def wire(self) -> Wire:
        return Wire(self.nats_url)

    @contextmanager
    def worker(self, *tags: str) -> Iterator[Process]:
        """A worker that takes one run at a time."""
        self._workers += 1
        worker_id = f"bench-{self._workers}"
        env = {"PYOCO_WORKER_DIR": str(self.folder / worker_id)}
        command = self._worker_command(worker_id, ",".join(tags))
        process = Process(command, folder=self.folder, name=worker_id, env=env)
        try:
            wait_until(lambda: self._lists_worker(process), within=_START_SECONDS, what=f"{worker_id} registered")
            yield process
        finally:
            process.stop()

    def _lists_worker(self, process: Process) -> bool:
        process.check()
        answer = self.client.get("/workers")
        # The peer answers 503 while there is no worker at all.
        return answer.is_success and any(worker["worker_id"] == process.name for worker in answer.json())


class Ours(Side):
    """The embedded stack, everything through its gateway."""

    def __init__(self, folder: Path, *options: str, env: Mapping[str, str] | None = None) -> None:
        # Where runs-api can be scraped past the gateway.
        self.metrics_port = free_port()
        ports = ["--metrics-port", str(self.metrics_port)]
        self.stack = Stack(folder / "data", "--workers", "0", *ports, *options, with_worker=False, env=env)
        super().__init__(folder, self.stack.port)

    def __enter__(self) -> "Ours":
        self.folder.mkdir()
        try:
            self.stack.up()
        except BaseException as error:
            self.stack.run("down")
            if isinstance(error, AssertionError):
                raise BenchFailed(f"our stack does not start: {str(error).splitlines()[0]}") from error
            raise
        self._nats_url = self.stack.nats_url
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()
        self.stack.down()

    @property
    def nats_url(self) -> str:
        return self._nats_url

    @property
    def can_work(self) -> bool:
        return True

    def pids(self) -> dict[str, int]:
        status = self.stack.status()
        return {part["name"]: part["pid"] for part in status["parts"]} | {"launcher": status["launcher_pid"]}

    def program(self, name: str) -> str:
        return str(Path(sysconfig.get_path("scripts")) / name)

    def _worker_command(self, worker_id: str, tags: str) -> list[str]:
        seed = worker_file(self.nats_url, worker_id, tags.split(","))
        return [
            self.program("pyoco-worker"),
            *("--nats-url", self.nats_url, "--worker-id", worker_id, "--tags", tags, "--nkey-file", str(seed)),
            *("--slots", "1", "--flows-dir", str(_FLOWS)),
        ]


class Peer(Side):
    """The peer's HTTP gateway and a NATS with the same binary and settings as ours."""

    def __init__(self, folder: Path, env: PeerEnv) -> None:
        super().__init__(folder, free_port())
        self._env = env
        self._nats = NatsServer(folder / "nats")
        self._parts = ExitStack()

    def __enter__(self) -> "Peer":
        self.folder.mkdir()
        with ExitStack() as parts:
            parts.callback(self._nats.stop)
            self._nats.start()
            self._http = parts.enter_context(self._serving(self.port, "http"))
            self._parts = parts.pop_all()
        return self

    @contextmanager
    def wanting_keys(self) -> Iterator[tuple[int, dict[str, str]]]:
        """A second HTTP service beside the first, on the same NATS: its port, and the header with a key for it."""
        port, env = free_port(), {"PYOCO_HTTP_AUTH_MODE": "api_key"}
        with self._serving(port, "http-with-keys", env):
            command = [self._env.python, "-m", "pyoco_server.admin_cli", "api-key", "create", "--tenant", "bench"]
            done = subprocess.run(
                command, env=os.environ | self._settings, capture_output=True, text=True, check=False
            )
            if done.returncode != 0:
                raise BenchFailed(f"the peer issues no key: {done.stderr.strip()[-500:]}")
            yield port, {"X-API-Key": json.loads(done.stdout)["api_key"]}

    @property
    def _settings(self) -> dict[str, str]:
        return {"PYOCO_NATS_URL": self._nats.url}

    @contextmanager
    def _serving(self, port: int, name: str, env: Mapping[str, str] | None = None) -> Iterator[Process]:
        command = [
            *(self._env.script("uvicorn"), "pyoco_server.http_api:create_app", "--factory", "--no-access-log"),
            *("--host", HOST, "--port", str(port)),
        ]
        process = Process(command, folder=self.folder, name=name, env={**self._settings, **(env or {})})
        try:
            wait_until(lambda: _is_up(process, port), within=_START_SECONDS, what=f"the peer's {name} answering")
            yield process
        finally:
            process.stop()

    def __exit__(self, *_: object) -> None:
        self.client.close()
        self._parts.close()

    @property
    def nats_url(self) -> str:
        return self._nats.url

    @property
    def can_work(self) -> bool:
        return self._env.has_worker

    def pids(self) -> dict[str, int]:
        return {"nats": self._nats.pid, "http": self._http.pid}

    def program(self, name: str) -> str:
        return self._env.script(name)

    def _worker_command(self, worker_id: str, tags: str) -> list[str]:
        return [
            self.program("pyoco-worker"),
            *("--nats-url", self.nats_url, "--worker-id", worker_id, "--tags", tags),
            *("--flow-resolver", f"{_FLOWS / 'bench_flows.py'}:resolve"),
        ]


def _is_up(process: Process, port: int) -> bool:
    process.check()
    with contextlib.suppress(httpx.TransportError):
        return httpx.get(f"http://{HOST}:{port}/health").is_success
    return False


@contextmanager
def both_sides(folder: Path, env: PeerEnv) -> Iterator[tuple[Ours, Peer]]:
    say("starting both sides")
    with Ours(folder / "ours") as ours, Peer(folder / "peer", env) as peer:
        yield ours, peer
