"""The groups of measurements, in the order they are made: what needs empty sides first, what fills them last."""

from collections.abc import Callable

from ..figures import Figure
from ..session import Session
from .drain import measure_drain, measure_writes
from .hostile import measure_hostile
from .keys import measure_keys
from .lists import measure_lists
from .maps import measure_map
from .memory import measure_memory
from .runs import measure_end_to_end, measure_tags
from .start import measure_start
from .submit import measure_batch, measure_submit
from .takeover import measure_takeover
from .watch import measure_watch

GROUPS: dict[str, Callable[[Session], list[Figure]]] = {
    "start": measure_start,
    "lists": measure_lists,
    "e2e": measure_end_to_end,
    "tags": measure_tags,
    "writes": measure_writes,
    "watch": measure_watch,
    "takeover": measure_takeover,
    "drain": measure_drain,
    "submit": measure_submit,
    "keys": measure_keys,
    "batch": measure_batch,
    "map": measure_map,
    "hostile": measure_hostile,
    "memory": measure_memory,
}
