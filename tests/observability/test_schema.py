"""One file names every metric; the metrics of a running stack are compared with it, both ways."""

from typing import Any

import pytest

from fleet_testkit.scrapes import Family, Scrape

from .conftest import MOST_FLOWS


def described(schema: dict[str, Any], component: str) -> dict[str, Family]:
    return {
        metric["name"]: Family(metric["name"], metric["type"], metric["help"], frozenset(metric.get("labels", ())))
        for metric in schema["metrics"]
        if component in metric["exposed_by"]
    }


@pytest.mark.parametrize("component", ["runs-api", "workers-api", "wheels-api", "auth", "worker"])
def test_a_process_exposes_exactly_what_the_schema_says(
    schema: dict[str, Any], scrapes: dict[str, Scrape], component: str
) -> None:
    exposed = dict(scrapes[component].families)
    assert exposed == described(schema, component)


def test_every_label_has_few_values(schema: dict[str, Any], scrapes: dict[str, Scrape]) -> None:
    for component, scrape in scrapes.items():
        for metric in schema["metrics"]:
            for label in metric.get("labels", ()):
                bound = schema["labels"][label]
                seen = {
                    value
                    for sample in (metric["name"], f"{metric['name']}_count")
                    for value in scrape.label_values(sample, label)
                }
                about = f"{metric['name']}{{{label}}} of {component}"
                if "values" in bound:
                    assert seen <= set(bound["values"]), about
                else:
                    assert len(seen) <= bound["at_most"], about


def test_names_of_flows_make_few_series_and_300_invented_ones_none(scrapes: dict[str, Scrape]) -> None:
    ended, executed = "pyoco_runs_ended_total", "pyoco_worker_run_duration_seconds_count"
    for component, metric in (("runs-api", ended), ("worker", executed)):
        flows = scrapes[component].label_values(metric, "flow")
        assert {"hello", "other"} <= flows
        assert len(flows) == MOST_FLOWS + 1
        assert not any(flow.startswith("invented") for flow in flows)
        assert (scrapes[component].value(metric, flow="other") or 0) > 300
    assert all(scrape.series < 2000 for scrape in scrapes.values())


def test_names_follow_the_conventions(schema: dict[str, Any]) -> None:
    # The spec's own names, which are gauges.
    of_spec = {"pyoco_runs_total", "pyoco_workers_alive_total", "pyoco_dlq_messages_total"}
    for metric in schema["metrics"]:
        name = metric["name"]
        assert name.startswith(("pyoco_", "process_")), name
        assert (metric["type"] == "counter") == name.endswith("_total") or name in of_spec, name
        assert not name.endswith(("_ms", "_milliseconds", "_minutes", "_kb", "_mb")), name
        if metric["type"] == "histogram":
            assert metric.get("unit") or name in {"pyoco_ledger_commit_writes", "pyoco_run_attempts"}, name


def test_the_build_exposes_its_revision(scrapes: dict[str, Scrape]) -> None:
    for component, scrape in scrapes.items():
        assert scrape.value("pyoco_build_info", component=component, revision="abc123") == 1
