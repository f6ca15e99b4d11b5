"""What a run and a group of runs are in a script, however they are waited for."""

from collections import Counter
from collections.abc import Iterable
from html import escape

from . import html, recipes
from .callers import Json, MethodOfRun
from .models import ENDED, RunState
from .routes import runs as routes


class RunBase:
    """What both kinds of run share: what is known of it, and its methods that are written once."""

    why = MethodOfRun(recipes.why)
    attempts = MethodOfRun(recipes.attempts)
    tasks = MethodOfRun(recipes.tasks)
    logs = MethodOfRun(routes.get_logs)

    def __init__(self, run_id: str, state: RunState | None = None, end: Json | None = None) -> None:
        self.id = run_id
        # As it was when it was last looked at.
        self.state = state
        self._end = end
        if end is not None and state is None and end["status"] in ENDED:
            self.state = RunState.model_validate(end)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RunBase) and other.id == self.id

    def __hash__(self) -> int:
        return hash(self.id)

    def __repr__(self) -> str:
        known = f" {self.state.flow_name} {self.state.status}" if self.state else ""
        return f"<{type(self).__name__} {self.id}{known}>"

    def _repr_html_(self) -> str:
        if self.state is not None:
            return self.state._repr_html_()
        return html.table({"run": f"<code>{escape(self.id)}</code>", "status": "not looked at yet"})

    @property
    def _ended(self) -> bool:
        return self.state is not None and self.state.ended

    def _remember(self, end: Json) -> None:
        self._end = end
        if end["status"] in ENDED:
            self.state = RunState.model_validate(end)


class GroupBase:
    """Keeps the ids and the ends of its runs, never their results."""

    def __init__(self, run_ids: Iterable[str]) -> None:
        self.ids = list(run_ids)
        self._statuses: dict[str, str] = {}

    def __len__(self) -> int:
        return len(self.ids)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {len(self)} runs>"

    def _repr_html_(self) -> str:
        return html.of_group(len(self), self.counts)

    @property
    def counts(self) -> dict[str, int]:
        """How many runs are known to have ended in which way."""
        return dict(Counter(self._statuses.values()))
