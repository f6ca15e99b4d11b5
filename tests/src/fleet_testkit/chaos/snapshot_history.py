"""The whole history of every snapshot in KV: each revision that was ever stored, in order, and the rules it obeys."""

import dataclasses
from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js import api

from fleet_contracts.names import kv_key, kv_stream
from fleet_contracts.snapshot import RunSnapshot
from fleet_contracts.status import RunStatus

_COPIES = "snapshot-history"


@dataclass(frozen=True, slots=True)
class Revision:
    number: int
    # Of the same run; 0 for its first revision.
    number_before: int
    snapshot: RunSnapshot

    def __str__(self) -> str:
        s = self.snapshot
        holder = f"{s.worker_id}/{(s.worker_instance_id or '')[:4]}" if s.worker_id else "nobody"
        counts = f"attempt {s.attempt}, failures {s.failures}, interruptions {s.interruptions}, reopened {s.reopened}"
        return f"{self.number:>6} {s.status:<10} {holder:<14} {counts} {s.reason or ''}"


class SnapshotHistory:
    """Has the server send a copy of everything that the bucket stores: a KV watch may leave out what is replaced."""

    def __init__(self, bucket: str) -> None:
        self._bucket = bucket
        self._revisions: dict[str, list[Revision]] = defaultdict(list)

    async def follow(self, client: Client) -> None:
        js = client.jetstream()
        config = (await js.stream_info(kv_stream(self._bucket))).config
        copies = api.RePublish(src=">", dest=f"{_COPIES}.>")
        await js.update_stream(dataclasses.replace(config, republish=copies))
        await client.subscribe(f"{_COPIES}.>", cb=self._on_copy)

    def of(self, run_id: str) -> list[Revision]:
        return self._revisions[run_id]

    async def _on_copy(self, msg: Msg) -> None:
        if not msg.data:
            return  # the trace of a withdrawn run is removed
        headers = msg.headers or {}
        key = kv_key(self._bucket, msg.subject.removeprefix(f"{_COPIES}."))
        revision = Revision(
            int(headers["Nats-Sequence"]), int(headers["Nats-Last-Sequence"]), RunSnapshot.decode(msg.data)
        )
        self._revisions[key].append(revision)


def broken_rules(revisions: list[Revision]) -> list[str]:
    """Every rule that the history of one run breaks, in words."""
    broken = []
    if not revisions or revisions[0].number_before != 0 or revisions[0].snapshot.status is not RunStatus.PENDING:
        broken.append("the history does not begin with a waiting run")
    for before, after in pairwise(revisions):
        if after.number_before != before.number:
            broken.append(f"a revision between {before.number} and {after.number} was not seen")
        broken += [
            f"{rule}: {before.number} -> {after.number}" for rule in _broken_by(before.snapshot, after.snapshot)
        ]
    holders: dict[int, set[str]] = defaultdict(set)
    for revision in revisions:
        if revision.snapshot.worker_instance_id is not None:
            holders[revision.snapshot.attempt].add(revision.snapshot.worker_instance_id)
    broken += [f"attempt {number} had two holders" for number, seen in holders.items() if len(seen) > 1]
    return broken


def _broken_by(before: RunSnapshot, after: RunSnapshot) -> list[str]:
    same_life = after.reopened == before.reopened
    rules: dict[str, object] = {
        "attempts fell": after.attempt < before.attempt,
        "an attempt was left out": after.attempt > before.attempt + 1,
        "a new attempt began with no holder": after.attempt > before.attempt and after.worker_instance_id is None,
        "reopenings fell or were left out": after.reopened not in (before.reopened, before.reopened + 1),
        "a run was reopened that had not failed": not same_life and before.status is not RunStatus.FAILED,
        "a reopened run did not wait": not same_life and after.status is not RunStatus.PENDING,
        "a reopened run did not begin anew": not same_life and (after.failures or after.interruptions),
        "something was written after the end": same_life and before.is_terminal,
        "failures fell": same_life and after.failures < before.failures,
        "interruptions fell": same_life and after.interruptions < before.interruptions,
        "a cancel was forgotten": same_life
        and before.status is RunStatus.CANCELLING
        and not (after.is_terminal or after.status is RunStatus.CANCELLING),
        "a cancel was dated anew": same_life
        and before.cancel_requested_at is not None
        and after.cancel_requested_at != before.cancel_requested_at,
    }
    return [rule for rule, is_broken in rules.items() if is_broken]
