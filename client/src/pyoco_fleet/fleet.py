"""Fleet: submit flows, wait for their results, look after workers, wheels and dead letters."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar, Unpack

from . import recipes
from .callers import Blocking, BlockingClient, Method
from .calls import Call
from .config import server as find_server
from .fleet_base import (
    DeadLettersBase,
    FleetBase,
    Moment,
    Retry,
    Span,
    SubmitOptions,
    ids_of,
    many,
    one,
    wheel_path,
    workflow_text,
)
from .http_client import PyocoHttpClient
from .models import DeadLetter, RunState, Wheel, WheelEvent
from .routes import runs as run_routes
from .routes import wheels as wheel_routes
from .runs import Run, RunGroup
from .transport import Retries

T = TypeVar("T")


class Fleet(FleetBase, BlockingClient):
    """A fleet, by default that of PYOCO_SERVER, of the profile, or of this machine.

    Threads may share one. Close it, or use it in a `with` statement.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        api_key: str | None = None,
        api_key_header: str | None = None,
        profile: str | None = None,
        timeout: float = 30.0,
        retries: Retries | None = None,
    ) -> None:
        self.server = find_server(url, api_key=api_key, api_key_header=api_key_header, profile=profile)
        # A method for each route, for what is missing here.
        self.http = PyocoHttpClient.of(self.server, timeout=timeout, retries=retries)
        self.dead_letters = DeadLetters(self.http)
        self.wheels = Wheels(self.http)

    def close(self) -> None:
        self.http.close()

    def call(self, call: Call[T]) -> T:
        return self.http.call(call)

    def submit(
        self,
        flow: Any,
        params: Any = None,
        /,
        *,
        tag: str | None = None,
        tags: Sequence[str] | None = None,
        retry: Retry | None = None,
        not_before: Moment | None = None,
        delay_sec: Span | None = None,
        deadline_at: Moment | None = None,
        timeout_sec: Span | None = None,
        check_params: bool | None = None,
        idempotency_key: str | None = None,
        **more_params: Any,
    ) -> Run:
        """Submit a run: `submit("etl", path="a.csv", tag="gpu", retry=3)`, or `submit(Charge(amount=3))`.

        Params that have the name of an option go into the second argument: `submit("etl", {"tag": "x"})`.
        """
        options: SubmitOptions = {"tag": tag, "tags": tags, "retry": retry, "not_before": not_before}
        options |= {"delay_sec": delay_sec, "deadline_at": deadline_at, "timeout_sec": timeout_sec}
        options["check_params"] = check_params
        body = one(flow, params, more_params, options)
        answer = self.call(run_routes.submit(body, idempotency_key=idempotency_key))
        return Run(self.http, answer["run_id"])

    def map(
        self,
        flow: str | type,
        params: Iterable[Any],
        *,
        idempotency_key: str | None = None,
        **options: Unpack[SubmitOptions],
    ) -> RunGroup:
        """A run for each of `params`, submitted together: up to 1,000 in one request, all of them or none."""
        submissions = many(flow, params, options)
        return RunGroup(self.http, self.perform(recipes.submit_many(submissions, idempotency_key)))

    def submit_yaml(
        self,
        workflow: str | Path,
        *,
        flow_name: str,
        idempotency_key: str | None = None,
        **options: Unpack[SubmitOptions],
    ) -> Run:
        """Submit a run of a flow that comes with it: the path of a flow.yaml, or its text."""
        answer = self.http.submit_run_yaml(
            workflow_text(workflow),
            flow_name=flow_name,
            idempotency_key=idempotency_key,
            **options,
        )
        return Run(self.http, answer["run_id"])

    def run(self, run_id: str) -> Run:
        """A run by its id. It is not asked for before it is used."""
        return Run(self.http, run_id)

    def group(self, runs: Iterable[Run | str]) -> RunGroup:
        """Any runs as a group, to wait for all of them over one connection."""
        return RunGroup(self.http, ids_of(runs))

    def runs(self, *, limit: int | None = 100, **filters: Any) -> Iterator[Run]:
        """Runs, the newest first. Filters: status, flow, tag, tags, q, since, until. `limit=None` is all of them."""
        for item in self.items(recipes.run_page(limit, **filters), limit):
            yield Run(self.http, item["run_id"], RunState.model_validate(item))

    def metrics(self) -> str:
        """In the text format of Prometheus."""
        return self.http.get_metrics()


class DeadLetters(DeadLettersBase, Blocking):
    """Runs that failed for good: `fleet.dead_letters.requeue(flow="etl", rate=5)`."""

    def __init__(self, http: PyocoHttpClient) -> None:
        self._http = http

    def call(self, call: Call[T]) -> T:
        return self._http.call(call)

    def __iter__(self) -> Iterator[DeadLetter]:
        return self.list(limit=None)

    def list(self, *, limit: int | None = 100, **criteria: Any) -> Iterator[DeadLetter]:
        """The newest first. Criteria: flow, reason, tag, run_id, fingerprint, since, until, state."""
        return map(DeadLetter.model_validate, self.items(recipes.letter_page(limit, **criteria), limit))

    def get(self, letter_id: int) -> DeadLetter:
        return DeadLetter.model_validate(self._http.get_dead_letter(letter_id))


class Wheels(Blocking):
    """Libraries and flows that the workers install."""

    list = Method(recipes.list_wheels)

    def __init__(self, http: PyocoHttpClient) -> None:
        self._http = http

    def call(self, call: Call[T]) -> T:
        return self._http.call(call)

    def __iter__(self) -> Iterator[Wheel]:
        return iter(self.list())

    def upload(self, file: str | Path, *, tags: Sequence[str] | None = None) -> Wheel:
        """Register a wheel that is newer than every registered one of its package; `tags`: for these workers only."""
        path = Path(file)
        with path.open("rb") as data:
            return Wheel.model_validate(self._http.upload_wheel(filename=path.name, data=data, tags=tags))

    def download(self, name: str, to: str | Path) -> Path:
        """Write a wheel to a file, or into a folder under its name."""
        path = wheel_path(name, to)
        part = path.with_name(f"{path.name}.part")
        with part.open("wb") as file:
            for chunk in self._http.chunks(wheel_routes.download_wheel(name)):
                file.write(chunk)
        return part.replace(path)

    def delete(self, name: str) -> None:
        self._http.delete_wheel(name)

    def history(self, *, limit: int | None = 100, **filters: Any) -> Iterator[WheelEvent]:
        """Uploads and deletes, the latest first. Filters: wheel_name, action."""
        return map(WheelEvent.model_validate, self.items(recipes.history_page(limit, **filters), limit))
