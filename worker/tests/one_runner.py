"""A real runner process without an agent: the test sends it runs."""

import json
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fleet_worker.boundary.frames import Conclusion, Progress, Run, Setup
from fleet_worker.boundary.runner_account import AS_THE_AGENT
from fleet_worker.boundary.wheel_set import NO_WHEELS
from fleet_worker.pool.runner_process import RunnerProcess

FLOWS = Path(__file__).parent / "runner_flows"


@dataclass
class OneRun:
    run_id: str
    progress: list[Progress] = field(default_factory=list)
    conclusion: Conclusion | None = None

    @property
    def done(self) -> Conclusion:
        assert self.conclusion is not None
        return self.conclusion

    @property
    def events(self) -> list[dict[str, Any]]:
        last = self.conclusion.events if self.conclusion is not None else []
        return [*(event for progress in self.progress for event in progress.events), *last]

    @property
    def output(self) -> list[dict[str, Any]]:
        return [event for event in self.events if event["kind"] == "log"]

    def said(self, task: str | None = None, stream: str | None = None) -> str:
        return "".join(
            event["text"]
            for event in self.output
            if task in (None, event["task"]) and stream in (None, event["stream"])
        )


class OneRunner:
    def __init__(self, process: RunnerProcess, folder: Path) -> None:
        self.process = process
        self._folder = folder

    def begin(self) -> OneRun:
        return OneRun(str(uuid.uuid4()))

    async def run(self, flow: str, run: OneRun | None = None, **params: Any) -> OneRun:
        run = run or self.begin()
        request = Run(run.run_id, flow, json.dumps(params), str(self._folder / run.run_id), 1_000_000, 1_000_000)
        run.conclusion = await self.process.run(request, run.progress.append)
        return run


@asynccontextmanager
async def one_runner(folder: Path, **setup: Any) -> AsyncIterator[OneRunner]:
    runs = folder / "runs"
    runs.mkdir()
    setup = {"flows_dir": str(FLOWS), **setup}
    process = RunnerProcess(Setup(None, runs_dir=str(runs), **setup), AS_THE_AGENT, NO_WHEELS)
    try:
        ready = await process.start()
        assert not ready.broken
        yield OneRunner(process, runs)
    finally:
        await process.stop()
