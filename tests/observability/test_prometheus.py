"""A real Prometheus scrapes the embedded stack, answers, and can evaluate every rule and every panel."""

import json
import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import yaml

from fleet_testkit.containers.compose import why_no_engine
from fleet_testkit.containers.prometheus import Prometheus, PrometheusContainer
from fleet_testkit.containers.promtool import why_no_prometheus
from fleet_testkit.runs import submit, wait_ended
from fleet_testkit.stack import Stack
from fleet_testkit.waiting import wait_until

from .conftest import OBSERVABILITY, SERVICES, metrics_in

DASHBOARDS = sorted((OBSERVABILITY / "grafana" / "dashboards").glob("*.json"))
# The values that Grafana puts in for its own variables.
INTERVALS = {"$__rate_interval": "1m", "$__interval": "15s", "$__range": "1h", "$flow": ".*", "$tag": ".*"}


def panels() -> list[tuple[str, str]]:
    """Title and query of every panel of every dashboard."""
    found = []
    for file in DASHBOARDS:
        for panel in json.loads(file.read_text())["panels"]:
            found += [(f"{file.stem}: {panel['title']}", target["expr"]) for target in panel.get("targets", ())]
    return found


@pytest.fixture(scope="module")
def prometheus(watched: Stack, metrics_port: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    if (reason := why_no_engine() or why_no_prometheus()) is not None:
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("prometheus")
    folder.chmod(0o755)
    text = (OBSERVABILITY / "prometheus.embedded.yml").read_text()
    text = text.replace("9465", str(metrics_port + 1)).replace("9464", str(metrics_port)).replace("10s", "1s")
    (folder / "prometheus.yml").write_text(text)
    (folder / "alerts.yml").write_text((OBSERVABILITY / "alerts.yml").read_text())
    with PrometheusContainer(folder) as prometheus:
        # A run while it looks, so that there is something that rises.
        submitted = [submit(watched.client, "hello", name="seen") for _ in range(5)]
        wait_ended(watched.client, submitted)
        wait_until(lambda: _all_up(prometheus), within=60, what="every part being scraped")
        yield prometheus


def _all_up(prometheus: Prometheus) -> bool:
    return prometheus.jobs_up() == {job: [1.0] for job in (*SERVICES, "worker")}


@pytest.mark.timeout(300)
def test_it_answers_what_happened(prometheus: Prometheus, played: Stack) -> None:
    runs = sum(
        float(line.split()[-1])
        for line in played.client.get("/metrics").text.splitlines()
        if line.startswith("pyoco_runs_total{")
    )
    wait_until(lambda: prometheus.value("sum(pyoco_runs_total)") == runs, within=30, what="all runs counted")
    assert (prometheus.value('sum(pyoco_runs_ended_total{flow="hello", status="COMPLETED"})') or 0) >= 8
    assert prometheus.value("max(pyoco_workers_alive_total)") == 1
    assert prometheus.value('max(pyoco_queue_jobs{tag="nobodys", state="waiting"})') >= 1  # type: ignore[operator]
    assert prometheus.value("sum(pyoco_worker_slots)") == 2
    assert len(prometheus.query("pyoco_nats_up == 1")) == 5
    wait_until(
        lambda: (
            (prometheus.value("histogram_quantile(0.5, sum by (le) (pyoco_run_duration_seconds_bucket))") or 0) > 0
        ),
        within=30,
        what="a quantile",
    )


@pytest.mark.timeout(300)
def test_it_knows_the_rules_and_none_of_them_fails(prometheus: Prometheus) -> None:
    def rules() -> list[dict[str, Any]] | None:
        found = [rule for group in prometheus.ask("/api/v1/rules")["groups"] for rule in group["rules"]]
        return found if found and all(rule["health"] != "unknown" for rule in found) else None

    found = wait_until(rules, within=60, what="every rule evaluated")
    assert found is not None
    assert {rule["name"]: rule["health"] for rule in found} == dict.fromkeys((rule["name"] for rule in found), "ok")
    written = yaml.safe_load((OBSERVABILITY / "alerts.yml").read_text())
    assert len(found) == sum(len(group["rules"]) for group in written["groups"])

    def alerts() -> set[str]:
        return {alert["labels"]["alertname"] for alert in prometheus.ask("/api/v1/alerts")["alerts"]}

    # Somebody has submitted to a tag that nobody serves: that, and nothing of the fleet's own health.
    own_doing = {"PyocoNoWorkerForTag", "PyocoDeadLettersGrow"}
    wait_until(lambda: alerts() <= own_doing, within=30, what="only alerts about what was submitted")


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("title", "query"), panels(), ids=[title for title, _ in panels()])
def test_every_panel_shows_something(prometheus: Prometheus, title: str, query: str) -> None:
    for variable, value in INTERVALS.items():
        query = query.replace(variable, value)
    found = wait_until(lambda: prometheus.query(query), within=30, what=f"{title}: data for {query}")
    assert found


def test_panels_use_only_metrics_of_the_schema(schema: dict[str, Any]) -> None:
    known = {metric["name"] for metric in schema["metrics"]} | {"up"}
    for title, query in panels():
        assert metrics_in(query) <= known, title


def summed(query: str) -> set[str]:
    """The metrics of a query whose values as they are, not their rates, are added up."""
    return set(re.findall(r"\bsum\b(?:\s*(?:by|without)\s*\([^)]*\))?\s*\(\s*(pyoco_\w+)", query))


def test_what_every_replica_exposes_alike_is_never_added_up(schema: dict[str, Any]) -> None:
    alike = {metric["name"] for metric in schema["metrics"] if metric.get("fleet_wide")}
    assert {"pyoco_runs_total", "pyoco_queue_jobs"} <= alike
    assert summed('sum by (tag) (pyoco_queue_jobs{state="waiting"})') == {"pyoco_queue_jobs"}
    rules = yaml.safe_load((OBSERVABILITY / "alerts.yml").read_text())["groups"]
    queries = [*panels(), *((rule["alert"], rule["expr"]) for group in rules for rule in group["rules"])]
    for title, query in queries:
        assert not summed(query) & alike, f"{title}: every replica reports the same, so take max()"


def test_dashboards_are_what_grafana_reads() -> None:
    assert DASHBOARDS
    for file in DASHBOARDS:
        board = json.loads(file.read_text())
        assert board["uid"] == f"pyoco-{file.stem}"
        assert board["schemaVersion"] >= 39
        ids = [panel["id"] for panel in board["panels"]]
        assert len(ids) == len(set(ids))
        for panel in board["panels"]:
            assert {"h", "w", "x", "y"} <= panel["gridPos"].keys(), panel["title"]
            assert panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24, panel["title"]
            if panel["type"] != "row":
                assert panel["datasource"] == {"type": "prometheus", "uid": "prometheus"}, panel["title"]


@pytest.mark.parametrize(
    "path", ["/", "/metrics", "/runs", "/health", "/runs-api/runs", "/runs-api/metrics/../../runs"]
)
def test_the_port_for_metrics_is_no_way_in(played: Stack, metrics_port: int, path: str) -> None:
    assert httpx.get(f"http://127.0.0.1:{metrics_port}{path}").status_code == 404
