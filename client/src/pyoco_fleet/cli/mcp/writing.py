"""Tools that change something: there only with --allow-writes."""

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import Field

from ...http_client import AsyncPyocoHttpClient
from .bounds import shortened
from .reading import RunId, Tool

_MOST_REQUEUED = 1000


class WritingTools:
    def __init__(self, client: AsyncPyocoHttpClient) -> None:
        self._client = client

    @property
    def tools(self) -> Sequence[Tool]:
        return (self.submit_run, self.rerun_run)

    @property
    def destructive_tools(self) -> Sequence[Tool]:
        return (self.cancel_run, self.requeue_dead_letters)

    async def submit_run(
        self,
        flow: str,
        params: Annotated[dict[str, Any] | None, Field(description="as read_flow's params_schema says")] = None,
        tag: Annotated[str | None, Field(description="which workers may take the run")] = None,
        labels: Annotated[list[str] | None, Field(description="describe the run only")] = None,
        idempotency_key: Annotated[str | None, Field(description="the same key twice makes one run")] = None,
    ) -> Any:
        """Submit a run of a flow; read_run and read_result tell what becomes of it."""
        return await self._client.submit_run(flow, params, tag=tag, tags=labels, idempotency_key=idempotency_key)

    async def rerun_run(self, run_id: RunId) -> Any:
        """Submit the input of a run once more, as a new run."""
        return await self._client.rerun_run(run_id)

    async def cancel_run(
        self, run_id: RunId, reason: Annotated[str | None, Field(description="kept with the run")] = None
    ) -> Any:
        """Ask a run to end. It ends as soon as its tasks let it."""
        run = await self._client.cancel_run(run_id, reason=reason)
        return {"run_id": run_id, "status": run["status"]}

    async def requeue_dead_letters(
        self,
        letter_id: Annotated[int | None, Field(description="this letter only")] = None,
        flow: str | None = None,
        reason: str | None = None,
        fingerprint: Annotated[str | None, Field(description="of list_dead_letter_groups")] = None,
        limit: Annotated[int, Field(ge=1, le=_MOST_REQUEUED)] = 100,
        rate_per_sec: Annotated[float, Field(gt=0, description="how many may begin per second")] = 10.0,
    ) -> Any:
        """Try the failed runs of dead letters again: of one letter, or of the oldest open ones that fit."""
        if letter_id is not None:
            return await self._client.requeue_dead_letter(letter_id)
        # Without any criterion the server says what is missing.
        answer = await self._client.requeue_dead_letters(
            flow=flow, reason=reason, fingerprint=fingerprint, limit=limit, rate_per_sec=rate_per_sec
        )
        return shortened(answer | {"skipped": answer["skipped"][:20]})
