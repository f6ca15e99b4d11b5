"""The wheel registry, filled by the test with small real wheels, as any client of the object store would."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
from nats.js.api import ObjectMeta
from nats.js.object_store import ObjectStore

from fleet_contracts.wheel import WHEEL_TAGS_HEADER
from fleet_contracts.worker_record import WheelSync
from fleet_testkit.waiting import eventually
from fleet_testkit.wheels import build_wheel

from .conftest import Desk

# A flow that returns its version, and can be made to wait; a task for workflow files; a plain function.
SHOP = """
import os
import time

from pyoco import Flow, task

VERSION = {version!r}


@task
def sell(file=None):
    deadline = time.monotonic() + 60
    while file and not os.path.exists(file) and time.monotonic() < deadline:
        time.sleep(0.02)
    return VERSION


flow = Flow("shop") >> sell


def make_flow():
    return Flow("made") >> sell


def price(amount=2):
    return f"{{amount}} x {{VERSION}}"


def offer(registry):
    registry.register_callable(price, name="shop/price")
"""
ENTRY_POINTS = {
    "pyoco.flows": {"shop": "shop:flow", "made": "shop:make_flow"},
    "pyoco.tasks": {"shop": "shop:offer"},
}
FAST: dict[str, str] = {"PYOCO_WHEEL_SYNC_ENABLED": "1", "PYOCO_WHEEL_SYNC_INTERVAL_SEC": "0.5"}


def shop_wheel(folder: Path, version: str = "1.0", **options: Any) -> Path:
    modules = {"shop/__init__.py": SHOP.format(version=version)}
    return build_wheel(folder, "shop", version, **{"modules": modules, "entry_points": ENTRY_POINTS, **options})


class WheelStore:
    def __init__(self, desk: Desk, store: ObjectStore) -> None:
        self._desk = desk
        self._store = store

    @classmethod
    async def make(cls, desk: Desk) -> "WheelStore":
        bucket = desk.settings.wheel_object_store_bucket
        return cls(desk, await desk.link.jetstream.create_object_store(bucket))

    async def put(self, wheel: Path, *, tags: str = "", name: str | None = None) -> str:
        headers = {WHEEL_TAGS_HEADER: tags} if tags else None
        name = name or wheel.name
        content = wheel.read_bytes()  # noqa: ASYNC240 - small
        await self._store.put(name, content, ObjectMeta(name=name, headers=headers))
        return name

    async def delete(self, name: str) -> None:
        await self._store.delete(name)

    async def corrupt(self, name: str) -> None:
        """The object's bytes become others than its digest says."""
        info = await self._store.get_info(name)
        bucket = self._desk.settings.wheel_object_store_bucket
        subject = f"$O.{bucket}.C.{info.nuid}"
        js = self._desk.link.jetstream
        await js.purge_stream(f"OBJ_{bucket}", subject=subject)
        await js.publish(subject, b"x" * (info.size or 0))

    async def wait_synced(
        self, worker_id: str, condition: Callable[[WheelSync], Any], *, what: str, within: float = 30.0
    ) -> WheelSync:
        async def look() -> WheelSync | None:
            record = await self._desk.worker_record(worker_id)
            return record.wheel_sync if record is not None else None

        def is_met(seen: WheelSync | None) -> bool:
            return seen is not None and bool(condition(seen))

        found = await eventually(look, until=is_met, within=within, what=what)
        assert found is not None
        return found

    async def wait_installed(self, worker_id: str, *names: str) -> WheelSync:
        return await self.wait_synced(
            worker_id,
            lambda sync: sync.last_result == "ok" and [wheel.name for wheel in sync.installed_wheels] == list(names),
            what=f"{names} in force",
        )


def pips_of(pid: int) -> list[psutil.Process]:
    """The installs that a worker's agent has under way."""

    def is_pip(process: psutil.Process) -> bool:
        try:
            return "fleet_worker.wheels.pip_process" in process.cmdline()
        except psutil.NoSuchProcess:
            return False  # it has just ended

    return [child for child in psutil.Process(pid).children(recursive=True) if is_pip(child)]
