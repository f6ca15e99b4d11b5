"""The alert rules: promtool's own tests of them, and that all they mention exists."""

import re
from typing import Any

import pytest
import yaml

from fleet_testkit.containers.promtool import promtool, why_no_promtool

from .conftest import OBSERVABILITY, ROOT, metrics_in

RULES: list[dict[str, Any]] = [
    rule for group in yaml.safe_load((OBSERVABILITY / "alerts.yml").read_text())["groups"] for rule in group["rules"]
]
CASES: list[dict[str, Any]] = [
    check
    for case in yaml.safe_load((OBSERVABILITY / "alerts_test.yml").read_text())["tests"]
    for check in case["alert_rule_test"]
]


@pytest.mark.timeout(600)
def test_promtool_fires_and_silences_every_alert() -> None:
    if (reason := why_no_promtool()) is not None:
        pytest.skip(reason)
    assert "SUCCESS" in promtool("check", "rules", "alerts.yml", folder=OBSERVABILITY)
    assert "SUCCESS" in promtool("test", "rules", "alerts_test.yml", folder=OBSERVABILITY)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: str(rule["alert"]))
def test_an_alert_is_tried_both_ways_and_says_what_to_do(rule: dict[str, Any], schema: dict[str, Any]) -> None:
    tried = [bool(case["exp_alerts"]) for case in CASES if case["alertname"] == rule["alert"]]
    assert set(tried) == {True, False}
    assert rule["labels"]["severity"] in ("warning", "critical")
    assert metrics_in(rule["expr"]) <= {metric["name"] for metric in schema["metrics"]} | {"up"}
    page, _, anchor = rule["annotations"]["runbook_url"].partition("#")
    headings = re.findall(r"^#+ (.+)$", (ROOT / page).read_text(), flags=re.MULTILINE)
    assert anchor in {heading.lower().replace(" ", "-") for heading in headings}
