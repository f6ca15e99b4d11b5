"""Judges who executes runs: workers by tag, their flows, waiting runs, dead letters."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..texts import t
from .finding import Findings
from .parts import look_unseen
from .replies import WORKERS, Replies, live

# Of what is listed one by one.
_SHOWN = 5


def judge_workers(found: Findings, replies: Replies) -> None:
    reply, session = replies["workers"], found.session
    if reply.error is not None:
        look_unseen(found, "workers", "workers", replies)
        return
    alive = live(reply)
    if not alive:
        found.problem("workers", "workers.none", t("doctor.workers.start"))
    by_tag: defaultdict[str, list[Any]] = defaultdict(list)
    for worker in alive:
        for tag in worker["tags"]:
            by_tag[tag].append(worker)
    for tag, workers in sorted(by_tag.items()):
        _judge_tag(found, tag, workers)
    if len(reply.value) >= WORKERS:
        found.warning("workers", "workers.many", count=WORKERS)
    gone = [
        worker["worker_id"] for worker in reply.value if worker["state"] == "DISCONNECTED" and not worker["hidden"]
    ]
    if gone:
        advice = session.command(f"workers hide {gone[0]}")
        found.warning("workers", "workers.gone", t("doctor.workers.look", line=advice), workers=_some(gone))
    for worker in alive:
        sync = worker.get("wheel_sync") or {}
        if sync.get("last_result") == "error":
            advice = session.command("wheels")
            found.warning(
                "wheels", "workers.wheels", advice, worker=worker["worker_id"], error=sync.get("last_error")
            )


def _judge_tag(found: Findings, tag: str, workers: Sequence[Mapping[str, Any]]) -> None:
    taking = [worker for worker in workers if not worker["draining"]]
    values = {
        "tag": tag,
        "workers": len(workers),
        "slots": sum(worker["slots"] for worker in taking),
        "draining": len(workers) - len(taking),
        "hidden": sum(bool(worker["hidden"]) for worker in workers),
    }
    if taking:
        found.ok("workers", "workers.tag", **values)
    else:
        advice = found.session.command(f"workers resume {workers[0]['worker_id']}")
        found.warning("workers", "workers.draining", advice, **values)


def judge_flows(found: Findings, replies: Replies) -> None:
    reply = replies["flows"]
    if reply.error is not None:
        look_unseen(found, "flows", "flows", replies)
        return
    broken, edits = reply.value["broken"], reply.value["reload_failures"]
    told = {worker for fault in (*broken, *edits) for worker in fault["workers"]}
    faults = [
        *((_place(source), f"{source['exc_type']}: {source['message']}", source["workers"]) for source in broken),
        *((t("doctor.flows.edit"), edit["error"], edit["workers"]) for edit in edits),
        *(
            (t("doctor.flows.of_worker"), worker["flows_error"], [worker["worker_id"]])
            for worker in replies.live_workers
            if worker.get("flows_error") and worker["worker_id"] not in told
        ),
    ]
    for place, error, workers in faults[:_SHOWN]:
        found.warning(
            "flows", "flows.broken", t("doctor.flows.advice"), place=place, error=error, workers=_some(workers)
        )
    if len(faults) > _SHOWN:
        found.warning("flows", "flows.more", found.session.command("flows"), count=len(faults) - _SHOWN)
    if not faults and (reply.value["flows"] or reply.value["open_tags"]):
        found.ok("flows", "flows.loaded", count=len(reply.value["flows"]))
    elif not faults:
        found.warning("flows", "flows.none", t("doctor.flows.advice"))


def _place(source: Mapping[str, Any]) -> str:
    return f"{source['place']}:{source['line']}" if source.get("line") else str(source["place"])


def judge_queues(found: Findings, replies: Replies) -> None:
    reply = replies["runs"]
    if reply.error is not None:
        look_unseen(found, "queues", "runs", replies)
        return
    waiting, total = reply.value["items"], reply.value.get("total")
    stuck: defaultdict[str, list[Any]] = defaultdict(list)
    for run in waiting:
        if run["waiting_reason"] == "no_worker":
            stuck[run["tag"]].append(run)
    for tag, runs in sorted(stuck.items()):
        advice = found.session.command(f"list --status PENDING --tag {tag}")
        found.problem("queues", "queues.stuck", advice, tag=tag, count=len(runs), why=runs[0]["waiting_detail"])
    if reply.value["next_cursor"] is not None:
        found.warning(
            "queues", "queues.many", found.session.command("list --status PENDING"), seen=len(waiting), total=total
        )
    elif not stuck:
        found.ok("queues", "queues.served", count=len(waiting))


def judge_letters(found: Findings, replies: Replies) -> None:
    reply = replies["letters"]
    if reply.error is not None:
        look_unseen(found, "dead-letters", "letters", replies)
        return
    newest, count = reply.value["items"], reply.value["total_open"]
    if not count:
        found.ok("dead-letters", "letters.none")
        return
    last = newest[0] if newest else {}
    values = {"flow": last.get("flow_name") or "-", "error": last.get("error") or "-"}
    found.warning("dead-letters", "letters.open", found.session.command("dlq groups"), count=count, **values)


def _some(names: Iterable[str]) -> str:
    known = sorted(names)
    more = [t("doctor.and_more", count=len(known) - _SHOWN)] if len(known) > _SHOWN else []
    return ", ".join([*known[:_SHOWN], *more])
