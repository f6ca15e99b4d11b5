"""Tools that change nothing."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict
from typing import Annotated, Any, Literal

from pydantic import Field

from ... import recipes
from ...http_client import AsyncPyocoHttpClient
from ...routes import runs
from ..doctor.examination import examine
from ..session import Session
from .bounds import fitting, lines_of, page, shortened

Tool = Callable[..., Awaitable[Any]]
RunId = Annotated[str, Field(description="whole id of the run, as list_runs has it")]
Limit = Annotated[int, Field(ge=1, le=50)]
Cursor = Annotated[str | None, Field(description="next_cursor of the page before")]
Offset = Annotated[int, Field(ge=0, description="next_offset of the part before, if the answer was cut")]
Status = Literal["PENDING", "RUNNING", "CANCELLING", "COMPLETED", "FAILED", "CANCELLED"]
_TRACEBACK_CHARS = 4_000
_WORKERS = 50


class ReadingTools:
    def __init__(self, client: AsyncPyocoHttpClient, session: Session) -> None:
        self._client = client
        self._session = session

    @property
    def tools(self) -> Sequence[Tool]:
        return (
            self.examine_fleet,
            self.list_runs,
            self.read_run,
            self.why_run,
            self.read_logs,
            self.read_result,
            self.list_flows,
            self.read_flow,
            self.list_workers,
            self.list_dead_letters,
            self.list_dead_letter_groups,
        )

    async def examine_fleet(self) -> Any:
        """Find out what is wrong with the fleet: services, NATS, ledger, disk, workers, queues, clocks, versions."""
        return {"findings": [asdict(finding) for finding in await examine(self._session)]}

    async def list_runs(
        self,
        status: list[Status] | None = None,
        flow: str | None = None,
        tag: Annotated[str | None, Field(description="which workers may take the run")] = None,
        label: Annotated[str | None, Field(description="one of the labels (tags) that describe runs")] = None,
        search: Annotated[str | None, Field(description="beginning of an id, part of a flow's name or error")] = None,
        since: Annotated[str | None, Field(description="submitted since: ISO 8601 or unix seconds")] = None,
        limit: Limit = 20,
        cursor: Cursor = "",
    ) -> Any:
        """List runs, the newest first. `waiting_reason` and `error` say why one waits or has failed."""
        found = await self._client.list_runs_vnext(
            status=list(status or ()),
            flow=flow,
            tag=tag,
            tags=label,
            q=search,
            since=since,
            limit=limit,
            cursor=cursor,
        )
        return {
            "runs": fitting(found["items"]),
            "total": found.get("total"),
            "next_cursor": found["next_cursor"],
        }

    async def read_run(self, run_id: RunId, records: bool = False, offset: Offset = 0) -> Any:
        """Read the state of a run, with `records` also inputs, outputs, errors and times of its tasks."""
        read = self._client.get_run_with_records if records else self._client.get_run
        return page(await read(run_id), offset)

    async def why_run(self, run_id: RunId) -> Any:
        """Say why a run waits or has failed: every attempt and decision, and the traceback of the failed task."""
        why = await self._client.perform(recipes.why(run_id))
        task, record = why.run.failed_task
        answer = {"run_id": run_id, "status": why.run.status, "sentences": fitting(why.sentences[:50], 2_000)}
        if record is not None and record.traceback:
            answer |= {"failed_task": task, "traceback": record.traceback[-_TRACEBACK_CHARS:]}
        return answer

    async def read_logs(
        self,
        run_id: RunId,
        task: Annotated[str | None, Field(description="only of this task")] = None,
        attempt: Annotated[int | None, Field(ge=1, description="only of this attempt")] = None,
        from_line: Annotated[
            int | None, Field(ge=1, description="from this line on; without: the last lines")
        ] = None,
    ) -> Any:
        """Read what the tasks of a run have printed until now; at most 200 lines at once."""
        call = runs.get_logs(run_id, task=task, attempt=attempt, prefix=task is None)
        return await lines_of(self._client.chunks(call), from_line)

    async def read_result(
        self,
        run_id: RunId,
        partial: Annotated[bool, Field(description="what there is so far, also while the run goes on")] = False,
        offset: Offset = 0,
    ) -> Any:
        """Read the result of a run that has ended, and the outputs of its tasks."""
        return page(await self._client.get_result(run_id, partial=partial), offset)

    async def list_flows(self, offset: Offset = 0) -> Any:
        """List the flows that can be submitted, and the sources that workers could not load."""
        return page(shortened(await self._client.list_flows()), offset)

    async def read_flow(self, flow: str, offset: Offset = 0) -> Any:
        """Read a flow: the JSON Schema of its params, its graph and defaults, and who offers it."""
        return page(await self._client.get_flow(flow), offset)

    async def list_workers(self, scope: Literal["active", "all"] = "active", offset: Offset = 0) -> Any:
        """List the workers seen last (up to 50): their tags, slots, runs, and whether they drain."""
        found = await self._client.get_workers(scope=scope, include_hidden=True, limit=_WORKERS)
        return page({"workers": [shortened(worker | {"wheel_sync": _sync(worker)}) for worker in found]}, offset)

    async def list_dead_letters(
        self,
        flow: str | None = None,
        reason: str | None = None,
        fingerprint: Annotated[str | None, Field(description="of list_dead_letter_groups")] = None,
        state: Literal["open", "requeued", "all"] = "open",
        limit: Limit = 20,
        cursor: Cursor = None,
    ) -> Any:
        """List dead letters, the newest first: runs that failed for good."""
        found = await self._client.list_dead_letters(
            state=state, limit=limit, cursor=cursor, flow=flow, reason=reason, fingerprint=fingerprint
        )
        return fitting(found)

    async def list_dead_letter_groups(self, limit: Limit = 20) -> Any:
        """Count open dead letters by kind: the same flow, reason and type of error."""
        return fitting(await self._client.list_dead_letter_groups(limit=limit))


def _sync(worker: dict[str, Any]) -> dict[str, Any]:
    """Of the wheels only whether they are in force; a list of them belongs elsewhere."""
    sync = worker.get("wheel_sync") or {}
    return {name: sync.get(name) for name in ("enabled", "last_result", "last_error")}
