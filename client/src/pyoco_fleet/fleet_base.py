"""What both kinds of fleet share: how a submit is written, and the methods that are written once."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from html import escape
from pathlib import Path
from typing import Any, TypeAlias, TypedDict

from . import html, recipes
from .callers import Json, Method
from .config import Server
from .routes.runs import submission
from .typed_params import as_params, flow_and_params, flow_of

Moment: TypeAlias = float | datetime
Span: TypeAlias = float | timedelta
# A number of attempts, or the whole rule.
Retry: TypeAlias = int | Mapping[str, Any]


class SubmitOptions(TypedDict, total=False):
    """What a submit may say besides its flow and params."""

    tag: str | None
    tags: Sequence[str] | None
    retry: Retry | None
    not_before: Moment | None
    delay_sec: Span | None
    deadline_at: Moment | None
    timeout_sec: Span | None
    # False: also params that do not fit the schema of the flow. Not for workflow files.
    check_params: bool | None


class FleetBase:
    server: Server

    flows = Method(recipes.flows)
    flow = Method(recipes.flow)
    workers = Method(recipes.list_workers)
    drain = Method(recipes.drain)
    resume = Method(recipes.resume)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.server.url}>"

    def _repr_html_(self) -> str:
        return html.table({"fleet": f'<a href="{escape(self.server.url)}">{escape(self.server.url)}</a>'})


class DeadLettersBase:
    groups = Method(recipes.letter_groups)
    requeue = Method(recipes.requeue)
    delete = Method(recipes.delete)


def one(flow: Any, params: Any, named: Mapping[str, Any], options: Mapping[str, Any]) -> Json:
    name, given_params = flow_and_params(flow, params)
    return submission(name, given_params | as_params(named), **options)


def many(flow: str | type, params: Iterable[Any], options: Mapping[str, Any]) -> Iterator[Json]:
    name = flow if isinstance(flow, str) else flow_of(flow)
    return (submission(name, as_params(each), **options) for each in params)


def workflow_text(workflow: str | Path) -> str:
    """A path is read, also one that is a string; a text is the workflow itself."""
    if isinstance(workflow, str) and workflow.endswith((".yaml", ".yml")) and "\n" not in workflow:
        workflow = Path(workflow)
    return workflow.read_text("utf-8") if isinstance(workflow, Path) else workflow


def wheel_path(name: str, to: str | Path) -> Path:
    """Into a folder under its own name, or to the file that `to` names."""
    return Path(to) / name if Path(to).is_dir() else Path(to)


def ids_of(runs: Iterable[Any]) -> Sequence[str]:
    return [run if isinstance(run, str) else run.id for run in runs]
