"""Runs: submit, read, list, watch, cancel."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ..calls import Call, as_json, as_text, given, idempotency

Json = dict[str, Any]


def retry_rule(retry: int | Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """`retry=3` is short for three attempts."""
    return {"max_attempts": retry} if isinstance(retry, int) else retry


def submission(
    flow_name: str,
    params: Mapping[str, Any] | None = None,
    *,
    retry: int | Mapping[str, Any] | None = None,
    **said: Any,
) -> Json:
    """One run as `POST /runs` takes it."""
    return {"flow_name": flow_name, "params": dict(params or {})} | given(retry=retry_rule(retry), **said)


def submit(body: Mapping[str, Any], *, idempotency_key: str | None = None) -> Call[Json]:
    return Call("POST", "/runs", as_json, json=body, headers=idempotency(idempotency_key))


def submit_run(
    flow_name: str,
    params: Mapping[str, Any] | None = None,
    *,
    tag: str | None = None,
    tags: Sequence[str] | None = None,
    idempotency_key: str | None = None,
    **options: Any,
) -> Call[Json]:
    """Submit a run. Options: retry, not_before, delay_sec, deadline_at, timeout_sec, check_params."""
    return submit(submission(flow_name, params, tag=tag, tags=tags, **options), idempotency_key=idempotency_key)


def submit_runs(runs: Sequence[Mapping[str, Any]], *, idempotency_key: str | None = None) -> Call[Json]:
    """Submit up to 1,000 runs, each an object as of `submit_run`: all of them are accepted, or none."""
    return Call("POST", "/runs/batch", as_json, json={"runs": list(runs)}, headers=idempotency(idempotency_key))


def submit_run_yaml(
    workflow_yaml: str,
    *,
    flow_name: str,
    tag: str | None = None,
    tags: Sequence[str] | None = None,
    retry: int | Mapping[str, Any] | None = None,
    idempotency_key: str | None = None,
    **options: Any,
) -> Call[Json]:
    """Submit a run of a flow that comes with it, as the text of a flow.yaml."""
    files = {"workflow": ("flow.yaml", workflow_yaml.encode(), "application/x-yaml")}
    form = given(flow_name=flow_name, tag=tag, tags=tags, **options)
    if retry is not None:
        form["retry"] = json.dumps(retry_rule(retry))
    headers = idempotency(idempotency_key)
    return Call("POST", "/runs/yaml", as_json, form=form, files=files, headers=headers)


def rerun_run(run_id: str, *, idempotency_key: str | None = None) -> Call[Json]:
    """Submit the same input as a new run."""
    place = {"run_id": run_id}
    return Call("POST", "/runs/{run_id}/rerun", as_json, place, headers=idempotency(idempotency_key))


def cancel_run(run_id: str, *, reason: str | None = None) -> Call[Json]:
    """Ask a run to end; of several requests the first one stands."""
    body = given(reason=reason) or None
    return Call("POST", "/runs/{run_id}/cancel", as_json, {"run_id": run_id}, json=body, repeatable=True)


def get_run(run_id: str) -> Call[Json]:
    """The latest state of a run."""
    return Call("GET", "/runs/{run_id}", as_json, {"run_id": run_id})


def get_run_with_records(run_id: str) -> Call[Json]:
    """The latest state of a run, with the records of its tasks."""
    return Call("GET", "/runs/{run_id}", as_json, {"run_id": run_id}, given(include="records"))


def get_tasks(run_id: str) -> Call[Json]:
    """The tasks of a run with their records."""
    return Call("GET", "/runs/{run_id}/tasks", as_json, {"run_id": run_id})


def get_result(run_id: str, *, partial: bool | None = None) -> Call[Json]:
    """The result of the flow and the outputs of its tasks; a Conflict until the run has ended."""
    return Call("GET", "/runs/{run_id}/result", as_json, {"run_id": run_id}, given(partial=partial))


def get_attempts(run_id: str) -> Call[Json]:
    """Every attempt of a run, and every decision about it with its reason."""
    return Call("GET", "/runs/{run_id}/attempts", as_json, {"run_id": run_id})


def get_events(
    run_id: str, *, attempt: int | None = None, after: str | None = None, limit: int | None = None
) -> Call[Json]:
    """The timeline of a run: its states, those of its tasks, and their output."""
    params = given(attempt=attempt, after=after, limit=limit)
    return Call("GET", "/runs/{run_id}/events", as_json, {"run_id": run_id}, params)


def get_logs(
    run_id: str,
    *,
    task: str | None = None,
    stream: str | None = None,
    attempt: int | None = None,
    prefix: bool | None = None,
) -> Call[str]:
    """The output of a run's tasks until now, as text."""
    params = given(task=task, stream=stream, attempt=attempt, prefix=prefix)
    return Call("GET", "/runs/{run_id}/logs", as_text, {"run_id": run_id}, params)


def follow_logs(
    run_id: str, *, task: str | None = None, stream: str | None = None, attempt: int | None = None
) -> Call[str]:
    """The output of a run's tasks as events until the run has ended."""
    params = given(task=task, stream=stream, attempt=attempt, follow=True)
    return Call("GET", "/runs/{run_id}/logs", as_text, {"run_id": run_id}, params)


def watch_run(
    run_id: str,
    *,
    include_records: bool = False,
    since: Any = None,
    timeout_sec: int | None = None,
) -> Call[str]:
    """The state of a run whenever it changes, as events until it has ended."""
    params = given(include="records" if include_records else None, since=since, timeout_sec=timeout_sec)
    return Call("GET", "/runs/{run_id}/watch", as_text, {"run_id": run_id}, params)


def watch_runs(run_ids: Sequence[str], *, results: bool | None = None, timeout_sec: int | None = None) -> Call[str]:
    """The states of up to 1,000 runs as events until all have ended, with `results` what they returned."""
    params = given(results=results, timeout_sec=timeout_sec)
    body = {"run_ids": list(run_ids)}
    return Call("POST", "/runs/watch", as_text, params=params, json=body, repeatable=True)


def watch_tags(tags: Sequence[str], *, results: bool | None = None, timeout_sec: int | None = None) -> Call[str]:
    """The states of all runs that have one of these labels, as events."""
    params = given(tags=list(tags), results=results, timeout_sec=timeout_sec)
    return Call("GET", "/runs/watch", as_text, params=params)


def get_results(run_ids: Sequence[str]) -> Call[Json]:
    """The results of up to 1,000 runs, those that have ended; `next` is the index where another request begins."""
    return Call("POST", "/runs/results", as_json, json={"run_ids": list(run_ids)}, repeatable=True)


def _filters(
    *,
    status: str | Sequence[str] | None = None,
    flow: str | Sequence[str] | None = None,
    tag: str | Sequence[str] | None = None,
    full: bool = False,
    limit: int | None = None,
    **more: Any,
) -> Json:
    wanted = given(limit=limit, include="full" if full else None, **more)
    return wanted | {name: value for name, value in (("status", status), ("flow", flow), ("tag", tag)) if value}


def list_runs(
    *,
    status: str | Sequence[str] | None = None,
    flow: str | Sequence[str] | None = None,
    tag: str | Sequence[str] | None = None,
    full: bool = False,
    limit: int | None = None,
    **filters: Any,
) -> Call[list[Json]]:
    """The newest runs. More filters: tags, q, since, until, workflow_yaml_sha256."""
    params = _filters(status=status, flow=flow, tag=tag, full=full, limit=limit, **filters)
    return Call("GET", "/runs", as_json, params=params).then(_items)


def list_runs_vnext(
    *,
    status: str | Sequence[str] | None = None,
    flow: str | Sequence[str] | None = None,
    tag: str | Sequence[str] | None = None,
    full: bool = False,
    limit: int | None = None,
    updated_after: Any = None,
    cursor: str | None = None,
    workflow_yaml_sha256: str | None = None,
    **filters: Any,
) -> Call[Json]:
    """A page of runs: `items`, and `next_cursor` for the next page. The cursor "" asks for the first one."""
    more = filters | {"updated_after": updated_after, "cursor": cursor}
    more["workflow_yaml_sha256"] = workflow_yaml_sha256 or None
    params = _filters(status=status, flow=flow, tag=tag, full=full, limit=limit, **more)
    return Call("GET", "/runs", as_json, params=params).then(_page)


def _items(body: Any) -> list[Json]:
    return body if isinstance(body, list) else list(body.get("items") or [])


def _page(body: Any) -> Json:
    return {"items": body, "next_cursor": None} if isinstance(body, list) else body
