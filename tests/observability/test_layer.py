"""compose.observability.yaml and what it mounts: pinned, bounded, on this machine only, and fitting together."""

import re
from typing import Any

import pytest
import yaml

from .conftest import OBSERVABILITY, ROOT

LAYER: dict[str, Any] = yaml.safe_load((ROOT / "compose.observability.yaml").read_text())
LOOKERS = {name: service for name, service in LAYER["services"].items() if "image" in service}


@pytest.mark.parametrize("name", LOOKERS)
def test_what_looks_at_the_fleet_is_bounded_and_can_change_nothing(name: str) -> None:
    service = LOOKERS[name]
    assert re.fullmatch(r"[a-z/-]+:v?\d+\.\d+\.\d+", service["image"])
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["deploy"]["resources"]["limits"].keys() == {"cpus", "memory"}
    for published in service.get("ports", ()):
        assert re.fullmatch(r"\$\{PYOCO_[A-Z]+_PUBLISH:-127\.0\.0\.1:\d+\}:\d+", published)
    for volume in service.get("volumes", ()):
        source, _, *mode = volume.split(":")
        if source.startswith("."):
            assert (ROOT / source).exists()
            assert mode == ["ro"]
        else:
            assert source in LAYER["volumes"]


def test_every_part_that_makes_spans_gets_the_address_to_send_them_to() -> None:
    traced = {name for name, service in LAYER["services"].items() if "image" not in service}
    assert traced == {"runs-api", "workers-api", "wheels-api", "auth", "worker"}
    for name in traced:
        environment = LAYER["services"][name]["environment"]
        assert environment["OTEL_EXPORTER_OTLP_ENDPOINT"].endswith(":-http://otel-collector:4318}")


def test_the_collector_uses_what_it_defines() -> None:
    collector = yaml.safe_load((OBSERVABILITY / "otel-collector.yml").read_text())
    for pipeline in collector["service"]["pipelines"].values():
        for kind in ("receivers", "processors", "exporters"):
            assert set(pipeline[kind]) <= collector[kind].keys()
    # It listens on the port that the fleet exports to, and exports to a part that the layer starts.
    assert collector["receivers"]["otlp"]["protocols"]["http"]["endpoint"] == "0.0.0.0:4318"
    assert collector["exporters"]["otlp/jaeger"]["endpoint"].partition(":")[0] in LOOKERS


def test_prometheus_looks_for_every_part_that_the_fleet_has() -> None:
    fleet = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]
    scraped = yaml.safe_load((OBSERVABILITY / "prometheus.yml").read_text())["scrape_configs"]
    named = {name for job in scraped for found in job.get("dns_sd_configs", ()) for name in found["names"]}
    assert named == {"runs-api", "workers-api", "wheels-api", "auth", "worker"}
    assert named <= fleet.keys()
    embedded = yaml.safe_load((OBSERVABILITY / "prometheus.embedded.yml").read_text())["scrape_configs"]
    assert {job["job_name"] for job in embedded} == named


def test_grafana_finds_its_sources_and_dashboards() -> None:
    provisioning = OBSERVABILITY / "grafana" / "provisioning"
    sources = yaml.safe_load((provisioning / "datasources" / "pyoco.yml").read_text())["datasources"]
    assert {source["url"].split("//")[1].partition(":")[0] for source in sources} <= LOOKERS.keys()
    mounted = {volume.split(":")[1] for volume in LOOKERS["grafana"]["volumes"]}
    [provider] = yaml.safe_load((provisioning / "dashboards" / "pyoco.yml").read_text())["providers"]
    assert provider["options"]["path"] in mounted
    home = LOOKERS["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert (OBSERVABILITY / "grafana" / "dashboards" / home.rpartition("/")[2]).exists()
