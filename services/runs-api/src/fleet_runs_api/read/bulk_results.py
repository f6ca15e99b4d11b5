"""The results of many runs in one answer of bounded size."""

from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

from pydantic_core import to_json

from .results import shown
from .states import RunStates, Seen

_MOST_BYTES = 4 * 1024 * 1024


@dataclass(slots=True)
class ResultsPage:
    # Each a JSON object.
    items: list[bytes] = field(default_factory=list)
    # Where the next page begins among the runs that were asked for; None: this is the last one.
    next: int | None = None


class BulkResults:
    def __init__(self, states: RunStates) -> None:
        self._states = states

    async def page(self, run_ids: Sequence[str], *, tenant_id: str) -> ResultsPage:
        """The results in the order of the ids, up to the size of a page. A run that goes on has only its state."""
        page = ResultsPage()
        size = 0
        async with aclosing(self._states.look(run_ids, tenant_id=tenant_id, with_results=True)) as looks:
            async for seen in looks:
                for run in seen:
                    item = _item(run)
                    size += len(item)
                    if size > _MOST_BYTES and page.items:
                        page.next = len(page.items)
                        return page
                    page.items.append(item)
        return page


def _item(run: Seen) -> bytes:
    if run.with_result is not None:
        return run.with_result
    if run.state is not None:
        return shown(run.state)
    return to_json({"run_id": run.run_id, "status": None, "ended": False})
