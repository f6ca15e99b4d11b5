"""A client of a real Prometheus, and a Prometheus in a container for a stack on this machine."""

import subprocess
import uuid
from pathlib import Path
from typing import Any

import httpx

from ..nats_server import free_port
from ..waiting import wait_until
from .promtool import prometheus_image


class Prometheus:
    def __init__(self, url: str) -> None:
        self.url = url

    def ask(self, path: str, **params: str) -> Any:
        answer = httpx.get(f"{self.url}{path}", params=params, timeout=30)
        document = answer.json()
        assert document["status"] == "success", f"{params}: {document}"
        return document["data"]

    def query(self, query: str) -> list[tuple[dict[str, str], float]]:
        """Labels and value of every series that the query finds now."""
        found = self.ask("/api/v1/query", query=query)
        assert found["resultType"] == "vector", found
        return [(series["metric"], float(series["value"][1])) for series in found["result"]]

    def value(self, query: str) -> float | None:
        found = self.query(query)
        assert len(found) <= 1, f"{query} finds {len(found)} series"
        return found[0][1] if found else None

    def jobs_up(self) -> dict[str, list[float]]:
        """By job: 1 for each target that answered the last scrape, 0 for each that did not."""
        jobs: dict[str, list[float]] = {}
        for labels, value in self.query("up"):
            jobs.setdefault(labels["job"], []).append(value)
        return jobs


class PrometheusContainer(Prometheus):
    """A Prometheus with the configuration of a folder, on the network of this machine."""

    def __init__(self, folder: Path) -> None:
        self._port = free_port()
        self._folder = folder
        self._name = f"pyoco-fleet-prometheus-{uuid.uuid4().hex[:8]}"
        super().__init__(f"http://127.0.0.1:{self._port}")

    def __enter__(self) -> "PrometheusContainer":
        mounted = ["--volume", f"{self._folder}:/etc/prometheus:ro", "--tmpfs", "/prometheus:mode=1777"]
        options = ["--detach", "--rm", "--name", self._name, "--network", "host", *mounted]
        flags = [
            "--config.file=/etc/prometheus/prometheus.yml",
            "--storage.tsdb.path=/prometheus",
            f"--web.listen-address=127.0.0.1:{self._port}",
        ]
        _docker("run", *options, prometheus_image(), *flags)
        wait_until(self._is_ready, within=60, what="Prometheus being ready")
        return self

    def __exit__(self, *_: object) -> None:
        _docker("rm", "--force", self._name)

    def _is_ready(self) -> bool:
        try:
            return httpx.get(f"{self.url}/-/ready", timeout=5).status_code == 200
        except httpx.TransportError:
            return False


def _docker(*arguments: str) -> None:
    done = subprocess.run(["docker", *arguments], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, f"docker {' '.join(arguments)}\n{done.stderr}"
