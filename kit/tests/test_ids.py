"""Ids that begin with the time."""

import time
import uuid

from fleet_kit.ids import new_id


def test_ids_are_uuids_that_grow_with_time() -> None:
    ids = []
    for _ in range(3):
        ids.append(new_id())
        begun = time.time_ns() // 1_000_000
        while time.time_ns() // 1_000_000 == begun:
            pass
    assert ids == sorted(ids)
    assert {uuid.UUID(one).version for one in ids} == {7}
    assert len({new_id() for _ in range(10_000)}) == 10_000
