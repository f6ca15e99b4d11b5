"""The catalogue of a worker: the flows that it offers, and the sources that it could not load."""

from enum import StrEnum
from typing import Any

from pydantic import Field

from .messages import Document, Message
from .names import Tag
from .retry import RetryPolicy

# The JSON of one worker's catalogue. Graphs are left out first, then schemas, then descriptions.
CATALOGUE_MAX_BYTES = 256 * 1024
# `GET /flows/events` is the stream of all flows: no flow of this name could be looked at.
RESERVED_FLOW_NAMES = frozenset({"events"})
# In a param's schema: the param takes the place of the result of this task. Few runs give one; lists leave it out.
REPLACES_RESULT_OF = "x-replaces-result-of"


class SourceKind(StrEnum):
    FILE = "file"
    RESOLVER = "resolver"
    WHEEL = "wheel"


class FlowSource(Message):
    kind: SourceKind
    # The file, relative to the flows folder; the resolver as it was given; the entry point of the wheel.
    place: str
    line: int | None = None
    # WHEEL only: the package and its version.
    package: str | None = None
    version: str | None = None


class GraphNode(Message):
    name: str
    # task, switch, loop, foreach or condition.
    kind: str = "task"


class GraphEdge(Message):
    source: str
    target: str
    # The case of a switch, or the condition, that the edge stands for.
    label: str | None = None


class FlowGraph(Message):
    nodes: list[GraphNode] = []
    edges: list[GraphEdge] = []


class FlowDefaults(Message):
    """What a submit of the flow has if it does not say otherwise."""

    retry: RetryPolicy | None = None
    timeout_sec: float | None = Field(None, gt=0)
    tag: Tag | None = None


class FlowOffer(Message):
    name: str
    source: FlowSource
    description: str | None = None
    # JSON Schema of an object. `additionalProperties: false` if no task can receive other parameters; None: unknown.
    params_schema: dict[str, Any] | None = None
    graph: FlowGraph | None = None
    defaults: FlowDefaults = FlowDefaults()


class BrokenSource(Message):
    """A file, a wheel's entry point or a flow that cannot be used."""

    place: str
    exc_type: str
    message: str
    line: int | None = None

    @property
    def shown(self) -> str:
        """`etl.py:3: ModuleNotFoundError: No module named 'pandas'`, as editors and terminals know places."""
        place = self.place if self.line is None else f"{self.place}:{self.line}"
        return f"{place}: {self.exc_type}: {self.message}"


class Catalogue(Message):
    flows: list[FlowOffer] = []
    broken: list[BrokenSource] = []
    # A resolver function may know flows that it does not list: any name may be asked for.
    is_open: bool = False
    # Parts were left out because the catalogue would be too large.
    is_truncated: bool = False

    def bounded(self, max_bytes: int = CATALOGUE_MAX_BYTES) -> "Catalogue":
        """The same catalogue without graphs, schemas and descriptions, in this order, until it is small enough."""
        found = self
        for field in ("graph", "params_schema", "description"):
            if len(found.encode()) <= max_bytes:
                return found
            flows = [flow.model_copy(update={field: None}) for flow in found.flows]
            found = found.model_copy(update={"flows": flows, "is_truncated": True})
        while len(found.encode()) > max_bytes and (found.flows or found.broken):
            update = {"flows": found.flows[: len(found.flows) // 2], "broken": found.broken[: len(found.broken) // 2]}
            found = found.model_copy(update=update)
        return found


class WorkerCatalogue(Document):
    """The value in the bucket of catalogues, under the id of the worker. It is written only when it changes."""

    worker_id: str
    instance_id: str
    tags: list[str] = []
    # When the flows were loaded.
    loaded_at: float
    catalogue: Catalogue = Catalogue()
    # An edit that could not be loaded: the catalogue is that of the version in force, and this is why.
    reload_error: str | None = None
