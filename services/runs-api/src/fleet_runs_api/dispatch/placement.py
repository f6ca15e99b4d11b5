"""Which live workers of a tag may execute a flow, and why none does."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import PurePath

from fleet_contracts.catalogue import BrokenSource, WorkerCatalogue

from ..live.catalogues import Catalogues
from ..live.workers import FleetView

_MOST_NAMES = 50
_MOST_BROKEN = 3
_LONGEST_MESSAGE = 300


@dataclass(frozen=True, slots=True)
class Prospects:
    # Workers that may execute the flow and have a free runner, the one with the most of them first, silent ones last.
    free: list[str]
    # Those that have none, the one with the fewest runs for its slots first, without silent ones.
    busy: list[str]
    # A live worker may execute the flow; perhaps it is drained.
    is_offered: bool
    # All of those are silent: by the tags of its record each of them may have the job, but it does not hear of it.
    is_unheard: bool
    # Some worker has published no catalogue, such as a peer's.
    is_unknown: bool


@dataclass(frozen=True, slots=True)
class Placement:
    workers: FleetView
    catalogues: Catalogues

    def loaded_at(self, worker_id: str) -> float | None:
        """When the worker loaded its flows, according to its catalogue."""
        record = self.workers.worker(worker_id)
        catalogue = None if record is None else self.catalogues.of_worker(record)
        return None if catalogue is None else catalogue.loaded_at

    def prospects(
        self,
        flow_name: str,
        tag: str,
        *,
        asking: str,
        declined_by: Mapping[str, float],
        slots_taken: Callable[[str], int],
        is_silent: Callable[[str], bool],
        now: float,
    ) -> Prospects:
        """What workers other than the asking one can do.

        `declined_by`: workers that cannot run it with the flows that they loaded at that time; a reload may bring it.
        `slots_taken`: those that a record does not show yet. `is_silent`: whether the worker has not answered lately.
        """
        offering = {offer.worker.worker_id for offer in self.catalogues.offers(flow_name, tag=tag, now=now)}
        found: list[tuple[bool, bool, int, str]] = []
        is_offered = is_heard = is_unknown = False
        for record in self.workers.serving(tag, now=now):
            if record.worker_id == asking:
                continue
            if (catalogue := self.catalogues.of_worker(record)) is None:
                is_unknown = is_unknown or not record.draining
                continue
            is_listed = record.worker_id in offering
            has_declined = declined_by.get(record.worker_id) == catalogue.loaded_at
            if has_declined or not (is_listed or _is_incomplete(catalogue)):
                continue
            is_offered, is_heard_of = True, not is_silent(record.worker_id)
            is_heard = is_heard or is_heard_of
            slots = record.slots - len(record.current_run_ids) - slots_taken(record.worker_id)
            if not record.draining:
                found.append((is_heard_of, is_listed, slots, record.worker_id))
        # Workers whose catalogue lists the flow before those that may know it.
        found.sort(key=lambda each: each[:3], reverse=True)
        free = [worker_id for *_, slots, worker_id in found if slots > 0]
        busy = [worker_id for is_heard_of, _, slots, worker_id in found if slots <= 0 and is_heard_of]
        return Prospects(free, busy, is_offered, is_offered and not is_heard, is_unknown)

    def is_divided(self, flow_name: str, tag: str, *, now: float) -> bool:
        """Whether live workers of the tag offer the flow and others do not, so that jobs are declined."""
        offering = {offer.worker.worker_id for offer in self.catalogues.offers(flow_name, tag=tag, now=now)}
        return bool(offering) and any(
            record.worker_id not in offering for record in self.workers.serving(tag, now=now)
        )

    def why_nowhere(self, flow_name: str, tag: str, *, now: float) -> str:
        """The sentence that a run of a flow that nobody offers ends with."""
        live = [catalogue.catalogue for _, catalogue in self.catalogues.of_live_workers(tag=tag, now=now)]
        names = sorted({flow.name for catalogue in live for flow in catalogue.flows})
        known = ", ".join(names[:_MOST_NAMES]) or "none"
        if len(names) > _MOST_NAMES:
            known += f" and {len(names) - _MOST_NAMES} more"
        # By their place: several workers may have the same files.
        broken = {source.place: source for catalogue in live for source in catalogue.broken}
        suspects = [source for source in broken.values() if _may_hold(source, flow_name)]
        suspects.sort(key=lambda source: (flow_name not in source.place, source.place))
        parts = [f"flow {flow_name!r} is offered by no live worker of the tag {tag}", f"known flows: {known}"]
        return "; ".join([*parts, *map(_failure_of, suspects[:_MOST_BROKEN])])


def _is_incomplete(catalogue: WorkerCatalogue) -> bool:
    """Whether the worker may know flows that its catalogue does not list."""
    return catalogue.catalogue.is_open or catalogue.catalogue.is_truncated


def _may_hold(source: BrokenSource, flow_name: str) -> bool:
    """A file may hold any flow; an entry point of a wheel is named after its own."""
    return source.place.endswith(".py") or flow_name in source.place


def _failure_of(source: BrokenSource) -> str:
    place = PurePath(source.place).name if source.place.startswith("/") else source.place
    line = f" (line {source.line})" if source.line is not None else ""
    return f"{place} could not be loaded: {source.exc_type}: {source.message[:_LONGEST_MESSAGE]}{line}"
