"""The Prometheus registry of one process, and a bound on label cardinality."""

import platform

from prometheus_client import CollectorRegistry, Gauge, disable_created_metrics
from prometheus_client.process_collector import ProcessCollector

from ..build import release

# The label value of all names beyond the limit.
OTHER = "other"


def new_registry(component: str, *, revision: str = "unknown") -> CollectorRegistry:
    """A registry of our own (not the process-global one), so that tests may build many."""
    disable_created_metrics()  # type: ignore[no-untyped-call]
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    build = Gauge(
        "pyoco_build_info",
        "Which build this is, and what it runs on.",
        ["component", "version", "revision", "python"],
        registry=registry,
    )
    build.labels(component, release(), revision, platform.python_version()).set(1)
    return registry


class BoundedNames:
    """Bounds the cardinality of a label: the first names keep their own value, all others share `other`.

    Every value of a label is a series that is kept for ever, so callers must not decide how many there are.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._names: set[str] = set()

    def label(self, name: str, *, known: bool = True) -> str:
        """The label value of a name. A name not yet known to exist (`known=False`) takes no new place."""
        if name in self._names:
            return name
        if known and len(self._names) < self._most:
            self._names.add(name)
            return name
        return OTHER
