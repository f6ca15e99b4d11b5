"""Prometheus beside a fleet in containers finds every service and every worker by itself."""

import pytest

from fleet_testkit.containers.compose import ComposedFleet
from fleet_testkit.containers.prometheus import Prometheus
from fleet_testkit.containers.promtool import why_no_prometheus
from fleet_testkit.nats_server import free_port
from fleet_testkit.runs import submit, wait_ended
from fleet_testkit.waiting import wait_until

pytestmark = pytest.mark.timeout(1800)


def test_prometheus_finds_every_part_and_answers(composed: ComposedFleet) -> None:
    if (reason := why_no_prometheus()) is not None:
        pytest.skip(reason)
    port = free_port()
    watched = composed.layered("compose.observability.yaml", PYOCO_PROMETHEUS_PUBLISH=f"127.0.0.1:{port}")
    watched.run("up", "--detach", "--wait", "--no-deps", "--no-recreate", "prometheus")
    try:
        prometheus = Prometheus(f"http://127.0.0.1:{port}")
        jobs = ("runs-api", "workers-api", "wheels-api", "auth", "worker", "prometheus")
        expected = {job: [1.0] * len(watched.containers(job)) for job in jobs}
        wait_until(lambda: prometheus.jobs_up() == expected, within=90, what="every part scraped")
        run_ids = [submit(composed.client, "hello", name="scraped") for _ in range(3)]
        wait_ended(composed.client, run_ids)
        wait_until(
            lambda: (prometheus.value('sum(pyoco_runs_ended_total{status="COMPLETED"})') or 0) >= 3,
            within=60,
            what="the ended runs in Prometheus",
        )
        assert (prometheus.value("sum(max by (status) (pyoco_runs_total))") or 0) >= 3
        assert prometheus.value("max(pyoco_ledger_up)") == 1
        rules = [rule for group in prometheus.ask("/api/v1/rules")["groups"] for rule in group["rules"]]
        assert rules
        # What the alerts look at must be open to nobody outside.
        assert watched.compose.get_service_host_and_port("prometheus", 9090) == ("127.0.0.1", port)
    finally:
        watched.run("rm", "--force", "--stop", "--volumes", "prometheus")
        # The fleet's own end knows nothing of what the layer has made.
        watched.docker(
            "volume", "rm", "--force", *(f"{composed.project}_{name}" for name in ("prometheus", "grafana"))
        )
        watched.docker("network", "rm", "--force", f"{composed.project}_lookout")
