"""A runner process: executes one run at a time for its agent, and ends when the agent does."""

import faulthandler
import json
import os
import queue
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from pyoco import Flow
from pyoco.core.models import RunStatus as EngineStatus

from fleet_contracts.dead_letter import DeadLetterReason
from fleet_contracts.status import RunStatus, TaskStatus
from fleet_kit.logs.json_values import describe

from ..boundary.compaction import compact_records, compact_result
from ..boundary.descendants import adopt_orphans, children_of, end_children
from ..boundary.frames import Cancel, Conclusion, Decoder, Frame, Ready, Run, Setup
from ..boundary.masking import SECRETS
from ..boundary.memory import MemoryLimit, offer_to_oom_killer
from ..boundary.parent_death import die_with
from ..boundary.workspace import Workspace
from .channel import Channel
from .coroutines import Coroutines
from .failures import describe_failure, shown_paths
from .loading.flows import FlowBroken, FlowNotFound, Flows, FlowsUnusable, load_flows
from .loading.import_path import add_to_path, use_copy
from .loading.params import Given, ParamsRefused, signature_of
from .loading.wheel_flows import WheelFlows
from .loading.workflows import Workflows
from .pyoco_context import FleetRunContext
from .pyoco_engine import FleetEngine
from .recording.output import Output
from .recording.plain import json_safe
from .recording.recorder import Recorder
from .recording.results import is_larger, leave_out_large_values, result_of

_FLUSH_INTERVAL_SECONDS = 0.1
_NOTHING_DONE = Conclusion(RunStatus.FAILED, tasks={}, task_records={})


class Runner:
    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._inbox: queue.SimpleQueue[Frame] = queue.SimpleQueue()
        self._output = Output()
        self._running = threading.Event()
        # Held while progress is sent, so that none of a run is sent after its end.
        self._flushing = threading.Lock()
        self._engine: FleetEngine | None = None
        self._coroutines = Coroutines()
        self._cancelled_run_id: str | None = None
        self._kept: set[int] = set()
        self._memory = MemoryLimit(0)

    def main(self, pipe_ends: Sequence[int]) -> None:
        self._output.capture(pipe_ends)
        try:
            self._serve()
        finally:
            self._output.release()

    def _serve(self) -> None:
        threading.Thread(target=self._listen, name="fleet-listen", daemon=True).start()
        threading.Thread(target=self._flush_now_and_then, name="fleet-flush", daemon=True).start()
        setup = self._inbox.get()
        assert isinstance(setup, Setup)
        SECRETS.set(setup.secrets)
        flows = self._load(setup)
        workflows = Workflows(setup)
        workspace = Workspace(Path(setup.runs_dir))
        self._output.capture_logging()
        # Processes that the flows' modules have started at import belong to no run: they are kept.
        self._kept = children_of(os.getpid())
        self._memory = MemoryLimit(setup.memory_max_bytes)
        while isinstance(frame := self._inbox.get(), Run) and flows is not None:
            done = self._execute(frame, flows, workflows, workspace)
            with self._memory.lifted():
                self._channel.send(done)
        workspace.close()

    def _load(self, setup: Setup) -> Flows | None:
        try:
            flows = _find_flows(setup)
        except FlowsUnusable as error:
            self._channel.send(Ready([], error=str(error)))
            return None
        broken = {shown_paths(file): asdict(failure) for file, failure in flows.broken.items()}
        catalogue = flows.catalogue().bounded().model_dump(mode="json")
        self._channel.send(Ready(flows.names, broken, catalogue=catalogue))
        return flows

    def _execute(self, run: Run, flows: Flows, workflows: Workflows, workspace: Workspace) -> Conclusion:
        try:
            done = self._attempt(run, flows, workflows, workspace)
            is_spent = end_children(self._kept) or self._memory.is_used_up or self._coroutines.is_stuck
            return replace(done, spent=True) if is_spent else done
        finally:
            workspace.leave(run.folder)

    def _attempt(self, run: Run, flows: Flows, workflows: Workflows, workspace: Workspace) -> Conclusion:
        try:
            workspace.enter(run.folder)
            if run.workflow_yaml is None:
                flow = flows.resolve(run.flow_name)
                is_complete = flows.knows_params(run.flow_name)
            else:
                flow, is_complete = workflows.build(run.workflow_yaml, name=run.flow_name), False
            params = json.loads(run.params)
            inputs = signature_of(flow).convert(params, is_complete=is_complete)
        except FlowBroken as error:
            return _broken(error)
        except FlowNotFound as error:
            return replace(_NOTHING_DONE, error=str(error), reason=error.reason)
        except ParamsRefused as error:
            # No `flow_failed`: the same params are refused by the next attempt.
            failure = replace(describe_failure(error), sentence="its params do not fit the flow")
            return replace(
                _NOTHING_DONE, error=str(error), reason=DeadLetterReason.EXECUTION_ERROR, failure=asdict(failure)
            )
        except Exception as error:  # noqa: BLE001 - a user's resolver may raise anything
            return self._failed(error, _NOTHING_DONE)
        else:
            return self._run_flow(run, flow, params, inputs)

    def _run_flow(
        self, run: Run, flow: Flow, params: dict[str, Any], inputs: dict[str, dict[str, Given]]
    ) -> Conclusion:
        names = sorted(task.name for task in flow.tasks)
        recorder = Recorder(names, log_max_bytes=run.log_max_bytes, outside=self._output)
        context = FleetRunContext(run_id=run.run_id)
        engine = FleetEngine(recorder, self._coroutines, inputs)
        # Known to the engine before it starts, so that no cancel comes too early.
        engine.active_runs[run.run_id] = context
        self._engine = engine
        if self._cancelled_run_id == run.run_id:
            engine.cancel(run.run_id)
        self._output.begin(recorder)
        self._running.set()
        raised: BaseException | None = None
        try:
            engine.run(flow, params, context)
        except BaseException as error:  # noqa: BLE001 - a task's SystemExit must not end this process
            raised = error
        finally:
            self._coroutines.end()
            self._output.flush()
            self._running.clear()
            self._engine = None
            with self._flushing:
                self._output.end()
        with self._memory.lifted():
            noted = recorder.drain()
            tasks = {name: TaskStatus(context.tasks[name].value) for name in sorted(context.tasks)}
            done = replace(_NOTHING_DONE, events=noted.events if noted else [], tasks=tasks)
            try:
                return self._conclude(run, flow, recorder, context, raised or context.refused, done)
            except BaseException as error:  # noqa: BLE001 - what tasks have returned may raise anything when it is read
                return self._failed(error, done)

    def _conclude(
        self,
        run: Run,
        flow: Flow,
        recorder: Recorder,
        context: FleetRunContext,
        raised: BaseException | None,
        done: Conclusion,
    ) -> Conclusion:
        is_cancelled = context.status in (EngineStatus.CANCELLING, EngineStatus.CANCELLED)
        result = result_of(flow, context.task_records) if raised is None and not is_cancelled else None
        has_large = leave_out_large_values(context.task_records, run.records_max_bytes)
        records = json_safe(context.serialize_task_records())
        for name, fields in recorder.iterations().items():
            records[name] |= fields
        # Before they are cut: a part of a secret would not be found.
        records = SECRETS.mask_records(records)
        records, truncated = compact_records(records, run.records_max_bytes)
        done = replace(
            done,
            task_records=records,
            task_records_truncated=truncated or has_large,
            task_errors=recorder.errors(),
            task_failures={
                name: asdict(describe_failure(error)) for name, error in recorder.raised() if error is not raised
            },
        )
        if raised is not None and self._cancelled_run_id == run.run_id:
            # A cancelled task may stop by raising an exception.
            return replace(done, status=RunStatus.CANCELLED, error=_text(raised))
        if raised is not None:
            return self._failed(raised, done)
        if is_cancelled:
            return replace(done, status=RunStatus.CANCELLED)
        if is_larger(result, run.records_max_bytes):
            return replace(done, status=RunStatus.COMPLETED, result_truncated=True)
        result, left_out = compact_result(json_safe(result), run.records_max_bytes)
        return replace(done, status=RunStatus.COMPLETED, result=result, result_truncated=left_out)

    def _failed(self, error: BaseException, done: Conclusion) -> Conclusion:
        hint = self._memory.explain(error)
        failure = describe_failure(error)
        text = _text(error)
        if hint is not None:
            text = f"{text}; {hint}" if failure.exc_message else f"{failure.exc_type}: {hint}"
            failure = replace(failure, sentence=hint)
        return replace(
            done,
            status=RunStatus.FAILED,
            error=text,
            reason=DeadLetterReason.EXECUTION_ERROR,
            flow_failed=True,
            failure=asdict(failure),
        )

    def _listen(self) -> None:
        """Read the agent's frames; when the socket is closed, exit at once, even in mid-run."""
        decoder = Decoder()
        try:
            while data := self._channel.read():
                for frame in decoder.feed(data):
                    if isinstance(frame, Cancel):
                        self._cancel(frame.run_id)
                    else:
                        self._inbox.put(frame)
        finally:
            os._exit(0)

    def _cancel(self, run_id: str) -> None:
        self._cancelled_run_id = run_id
        if (engine := self._engine) is not None:
            engine.cancel(run_id)
            self._coroutines.cancel()

    def _flush_now_and_then(self) -> None:
        while True:
            self._running.wait()
            time.sleep(_FLUSH_INTERVAL_SECONDS)
            with self._flushing, self._memory.lifted():
                recorder = self._output.recorder
                if recorder is not None and (progress := recorder.drain()) is not None:
                    self._channel.send(progress)


def _find_flows(setup: Setup) -> Flows:
    if setup.flows_dir is not None and setup.flows_shown_as not in (None, setup.flows_dir):
        use_copy(setup.flows_dir, Path(setup.flows_shown_as))
    add_to_path(setup.library_paths)
    if setup.wheel_paths is None:
        return load_flows(setup.flow_resolver, setup.flows_dir)
    add_to_path(setup.wheel_paths)
    has_own = setup.flow_resolver is not None or setup.flows_dir is not None
    own = load_flows(setup.flow_resolver, setup.flows_dir) if has_own else Flows()
    flows = WheelFlows(own, setup.wheel_paths)
    if setup.describes_wheels:
        flows.describe()
    return flows


def _broken(error: FlowBroken) -> Conclusion:
    assert error.__cause__ is not None
    failure = describe_failure(error.__cause__)
    failure = replace(failure, sentence=f"{error.sentence} ({failure.exc_type})")
    return replace(_NOTHING_DONE, error=str(error), reason=error.reason, failure=asdict(failure))


def _text(error: BaseException) -> str:
    return f"{type(error).__name__}: {describe(error, str)}"


def main() -> None:
    fd, parent_pid, *pipe_ends = map(int, sys.argv[1:])
    die_with(parent_pid)
    adopt_orphans()
    offer_to_oom_killer()
    faulthandler.enable()
    # The flows' code sees a plain command line.
    sys.argv[1:] = []
    Runner(Channel(fd)).main(pipe_ends)


if __name__ == "__main__":
    main()
