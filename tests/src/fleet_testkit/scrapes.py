"""Parses the metrics that a process exposes to a scrape."""

from collections.abc import Mapping
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families


@dataclass(frozen=True)
class Family:
    name: str
    type: str
    help: str
    # The names of the labels, without those that the type brings along (`le`).
    labels: frozenset[str]


class Scrape:
    def __init__(self, text: str) -> None:
        self._families = list(text_string_to_metric_families(text))
        self._samples = [sample for family in self._families for sample in family.samples]

    def value(self, name: str, **labels: str) -> float | None:
        """The sum of the samples that have these labels; None if there is none."""
        found = [s.value for s in self._samples if s.name == name and labels.items() <= s.labels.items()]
        return sum(found) if found else None

    def label_values(self, name: str, label: str) -> set[str]:
        return {sample.labels[label] for sample in self._samples if sample.name == name}

    @property
    def families(self) -> Mapping[str, Family]:
        """By the name that a query would use; those without a sample are not there."""
        found = {}
        for family in self._families:
            if not family.samples:
                continue
            name = f"{family.name}_total" if family.type == "counter" else family.name
            labels = frozenset(label for sample in family.samples for label in sample.labels if label != "le")
            found[name] = Family(name, family.type, family.documentation, labels)
        return found

    @property
    def series(self) -> int:
        return len(self._samples)
