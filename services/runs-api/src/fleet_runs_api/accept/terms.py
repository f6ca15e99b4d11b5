"""What live workers say about the runs of a flow: its defaults, and which params it takes."""

import logging
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TypeVar

import orjson

from fleet_contracts.catalogue import FlowOffer
from fleet_contracts.retry import RetryPolicy
from fleet_kit.logs.rate_limit import RateLimitedLog

from ..errors import InvalidParams
from ..live.catalogues import Catalogues
from .params_schema import Fault, ParamsSchema, UnusableSchema, values_in
from .requests import LONGEST_SPAN_SECONDS, SubmitRun

logger = logging.getLogger(__name__)

T = TypeVar("T")

# A worker that falls silent changes no catalogue: terms hold for so long.
_FRESH_SECONDS = 0.5
_MOST_TERMS = 1_000
_MOST_SCHEMAS = 256


@dataclass(frozen=True, slots=True)
class Terms:
    """The tag of a run, defaults for what its submit does not say, and the schemas that its params may fit."""

    tag: str
    retry: RetryPolicy | None = None
    timeout_sec: float | None = None
    # Empty: any params.
    schemas: tuple[ParamsSchema, ...] = ()

    def require_fit(self, params: dict[str, object], *, document: bytes) -> None:
        """InvalidParams if the params fit no schema. `document`: JSON that has the params."""
        if not self.schemas:
            return
        values = values_in(document)
        fewest: list[Fault] | None = None
        for schema in self.schemas:
            if not (faults := schema.faults(params, values=values)):
                return
            if fewest is None or len(faults) < len(fewest):
                fewest = faults
        assert fewest is not None
        sentence = "; ".join(f"{fault['field']}: {fault['reason']}" for fault in fewest)
        raise InvalidParams(f'{sentence}; to submit it all the same, send "check_params": false', fields=fewest)


class FlowTerms:
    """The terms of each flow and tag, computed again when a catalogue has changed."""

    def __init__(self, catalogues: Catalogues, *, default_tag: str) -> None:
        self._catalogues = catalogues
        self._default_tag = default_tag
        self._terms: dict[tuple[str, str | None], tuple[int, float, Terms]] = {}
        # Compiled schemas by their JSON; None: it cannot be used.
        self._schemas: dict[bytes, ParamsSchema | None] = {}
        self._said = RateLimitedLog()

    def of(self, wanted: SubmitRun, *, check: bool = True) -> Terms:
        """The terms of a submit. On the event loop only, where catalogues change."""
        if not self._catalogues.knows(wanted.flow_name):
            return self.of_workflow(wanted)
        terms = self._known(wanted.flow_name, wanted.tag)
        return terms if check and wanted.check_params else replace(terms, schemas=())

    def of_workflow(self, wanted: SubmitRun) -> Terms:
        """The terms of a flow that comes as a file, or that no worker offers."""
        return Terms(wanted.tag or self._default_tag)

    def _known(self, flow_name: str, tag: str | None) -> Terms:
        key, version, now = (flow_name, tag), self._catalogues.version, time.time()
        if (found := self._terms.get(key)) is not None:
            made_for, made_at, terms = found
            if made_for == version and abs(now - made_at) < _FRESH_SECONDS:
                return terms
        if len(self._terms) >= _MOST_TERMS:
            self._terms.clear()
        terms = self._made(flow_name, tag, now=now)
        self._terms[key] = (version, now, terms)
        return terms

    def _made(self, flow_name: str, tag: str | None, *, now: float) -> Terms:
        if tag is None:
            everywhere = self._catalogues.offers(flow_name, now=now)
            flows = [offer.flow for offer in everywhere] or self._left_behind(flow_name)
            tag = _agreed(flow.defaults.tag for flow in flows) or self._default_tag
        live = [offer.flow for offer in self._catalogues.offers(flow_name, tag=tag, now=now)]
        flows = live or self._left_behind(flow_name, tag=tag)
        timeout_sec = _agreed(flow.defaults.timeout_sec for flow in flows)
        return Terms(
            tag=tag,
            retry=_agreed(flow.defaults.retry for flow in flows),
            timeout_sec=timeout_sec if timeout_sec is None or timeout_sec <= LONGEST_SPAN_SECONDS else None,
            # Params are not refused for a worker that is gone: the next one may take others.
            schemas=self._schemas_of(live),
        )

    def _left_behind(self, flow_name: str, *, tag: str | None = None) -> list[FlowOffer]:
        """What is known of a flow that no live worker offers, perhaps because the only one is restarting."""
        latest = self._catalogues.latest_offer(flow_name, tag=tag)
        return [] if latest is None else [latest]

    def _schemas_of(self, flows: list[FlowOffer]) -> tuple[ParamsSchema, ...]:
        """The schemas that are offered; none if a worker takes params that cannot be checked."""
        compiled: dict[bytes, ParamsSchema] = {}
        for flow in flows:
            schema = self._compiled(flow)
            if schema is None:
                return ()
            compiled.setdefault(*schema)
        return tuple(compiled.values())

    def _compiled(self, flow: FlowOffer) -> tuple[bytes, ParamsSchema] | None:
        if flow.params_schema is None:
            return None
        try:
            key = orjson.dumps(flow.params_schema, option=orjson.OPT_SORT_KEYS)
        except orjson.JSONEncodeError:  # a number of more than 64 bits
            return None
        if key not in self._schemas:
            if len(self._schemas) >= _MOST_SCHEMAS:
                self._schemas.clear()
            try:
                self._schemas[key] = ParamsSchema.compile(flow.params_schema)
            except UnusableSchema as error:
                self._schemas[key] = None
                level = self._said.level(flow.name)
                logger.log(
                    level, "the params of flow %r are not checked: its schema is unusable: %s", flow.name, error
                )
        compiled = self._schemas[key]
        return None if compiled is None else (key, compiled)


def _agreed(values: Iterable[T | None]) -> T | None:
    """The value that all have."""
    first, *rest = list(values) or [None]
    return first if all(value == first for value in rest) else None
