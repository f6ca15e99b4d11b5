"""Decodes a run's snapshot from KV and rejects an impossible one: any worker may write any snapshot."""

import time
from typing import Any

from fleet_contracts.messages import MalformedMessage
from fleet_contracts.snapshot import RunSnapshot
from fleet_kit.nats.kv import Entry

from ..fold.rules import is_possible
from ..ledger.known import Known


def possible_snapshot(row: Any, entry: Entry) -> RunSnapshot:
    """The run's snapshot; MalformedMessage also if it is of another run or impossible for this one."""
    snapshot = RunSnapshot.decode_of(row.run_id, entry.value)
    if not is_possible(Known.of(row), snapshot, now=time.time()):
        raise MalformedMessage("RunSnapshot: says of the run what the ledger knows to be impossible")
    return snapshot
