"""A wheel of 500 MB goes in and out without being held in memory."""

import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import psutil
import pytest

from fleet_testkit.apps import ANONYMOUS, ServiceProcess
from fleet_testkit.nats_server import NatsServer
from fleet_testkit.waiting import wait_until
from fleet_testkit.wheels import build_wheel

MEBIBYTE = 1024 * 1024
WHEEL_BYTES = 500 * 1000 * 1000
ALLOWED = 64 * MEBIBYTE


def build_large_wheel(folder: Path) -> Path:
    """A stored member, so that the wheel is as large as what is in it."""
    path = build_wheel(folder, "shop")
    block = bytes(range(256)) * 4096
    with zipfile.ZipFile(path, "a") as archive, archive.open("shop/data.bin", "w") as member:
        for _ in range(WHEEL_BYTES // len(block) + 1):
            member.write(block)
    return path


class Peak:
    """The most memory that a process has, looked at again and again."""

    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)
        self.before = self.most = self._process.memory_info().rss

    def look(self) -> None:
        self.most = max(self.most, self._process.memory_info().rss)

    @property
    def rise(self) -> int:
        return self.most - self.before


@contextmanager
def watched(pid: int) -> Iterator[Peak]:
    peak, over = Peak(pid), threading.Event()

    def watch() -> None:
        while not over.wait(0.005):
            peak.look()

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield peak
    finally:
        over.set()
        thread.join()


@pytest.mark.alone
def test_a_wheel_of_500_megabytes_raises_memory_by_less_than_64(nats_server: NatsServer, tmp_path: Path) -> None:
    wheel = build_large_wheel(tmp_path)
    size = wheel.stat().st_size
    assert size > WHEEL_BYTES
    process = ServiceProcess("fleet_wheels_api", tmp_path, PYOCO_NATS_URL=nats_server.url)
    process.start()
    transport = httpx.HTTPTransport(uds=str(process.socket))
    try:
        with httpx.Client(transport=transport, base_url="http://service", headers=ANONYMOUS, timeout=120) as client:

            def is_ready() -> bool:
                try:
                    return client.get("/ready").status_code == 200
                except httpx.TransportError:
                    return False

            wait_until(is_ready, within=30, what="the service being ready")
            client.get("/wheels").raise_for_status()
            with watched(process.pid) as uploading, wheel.open("rb") as file:
                answer = client.post("/wheels", files={"wheel": (wheel.name, file)})
            assert answer.status_code == 200, answer.text
            received = 0
            with watched(process.pid) as downloading, client.stream("GET", f"/wheels/{wheel.name}") as answer:
                for piece in answer.iter_raw():
                    received += len(piece)
            assert received == size
    finally:
        process.kill()
    figures = f"upload +{uploading.rise / MEBIBYTE:.1f} MiB, download +{downloading.rise / MEBIBYTE:.1f} MiB"
    print(figures)
    assert uploading.rise < ALLOWED, figures
    assert downloading.rise < ALLOWED, figures
