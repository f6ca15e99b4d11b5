"""The runs service's view of the flows: a mirror of the catalogues of all workers in KV."""

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from fleet_contracts.catalogue import FlowOffer, WorkerCatalogue
from fleet_contracts.messages import MalformedMessage
from fleet_contracts.worker_record import WorkerRecord
from fleet_kit.nats.link import NatsLink
from fleet_kit.nats.stores.kv import Mirror

from .workers import FleetView

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Offer:
    """A flow, as one live worker offers it."""

    worker: WorkerRecord
    flow: FlowOffer


class Catalogues:
    """Catalogues of workers that are gone stay in the bucket; only those of live workers count."""

    def __init__(
        self,
        link: NatsLink,
        *,
        bucket: str,
        workers: FleetView,
        on_change: Callable[[str], None] = lambda worker_id: None,
    ) -> None:
        self._workers = workers
        self._on_change = on_change
        self._catalogues: dict[str, WorkerCatalogue] = {}
        # The offers of each flow, by the id of the worker.
        self._offers: dict[str, dict[str, FlowOffer]] = {}
        # Rises with every change of a catalogue.
        self.version = 0
        self.mirror = Mirror(link, bucket, on_change=self._changed)

    def knows(self, flow_name: str) -> bool:
        """Whether any worker, also one that is gone, has offered the flow."""
        return flow_name in self._offers

    def offers(self, flow_name: str, *, tag: str | None = None, now: float) -> list[Offer]:
        """The offers of a flow by live workers, those that serve the tag if one is given."""
        found = self._offers.get(flow_name, {})
        return [
            Offer(record, flow)
            for worker_id, flow in found.items()
            if (record := self._live(worker_id, now=now)) is not None and (tag is None or tag in record.tags)
        ]

    def latest_offer(self, flow_name: str, *, tag: str | None = None) -> FlowOffer | None:
        """The offer that was loaded last, also of a worker that is gone."""
        found = [
            (self._catalogues[worker_id].loaded_at, worker_id)
            for worker_id in self._offers.get(flow_name, {})
            if tag is None or tag in self._catalogues[worker_id].tags
        ]
        return self._offers[flow_name][max(found)[1]] if found else None

    def of_live_workers(
        self, *, now: float, tag: str | None = None
    ) -> Iterator[tuple[WorkerRecord, WorkerCatalogue]]:
        for worker_id, catalogue in self._catalogues.items():
            record = self._live(worker_id, now=now)
            if record is not None and (tag is None or tag in record.tags):
                yield record, catalogue

    def of_worker(self, record: WorkerRecord) -> WorkerCatalogue | None:
        """The catalogue of this instance of a worker; None if it has published none."""
        found = self._catalogues.get(record.worker_id)
        return found if found is not None and found.instance_id == record.instance_id else None

    @property
    def flow_names(self) -> list[str]:
        """The names of all flows, also of workers that are gone."""
        return sorted(self._offers)

    def _live(self, worker_id: str, *, now: float) -> WorkerRecord | None:
        """The record of a live worker whose catalogue is its own: one of an earlier instance does not count."""
        record = self._workers.worker(worker_id)
        if record is None or not self._workers.is_alive(record, now=now):
            return None
        return record if record.instance_id == self._catalogues[worker_id].instance_id else None

    def _changed(self, worker_id: str, value: bytes | None) -> None:
        self.version += 1
        if (before := self._catalogues.pop(worker_id, None)) is not None:
            for flow in before.catalogue.flows:
                offers = self._offers[flow.name]
                offers.pop(worker_id, None)
                if not offers:
                    del self._offers[flow.name]
        if value is not None:
            try:
                found = self._catalogues[worker_id] = WorkerCatalogue.decode(value)
            except MalformedMessage as error:
                logger.warning("the catalogue of worker %s cannot be read: %s", worker_id, error)
            else:
                for flow in found.catalogue.flows:
                    self._offers.setdefault(flow.name, {})[worker_id] = flow
        self._on_change(worker_id)
