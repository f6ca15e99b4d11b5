"""The flows of docs/reference/flow-files.md do what the page says."""

import json
import re
from pathlib import Path

import pytest
from pyoco.core.models import RunContext

from fleet_worker.runner.coroutines import Coroutines
from fleet_worker.runner.loading.flows import Flows, load_flows
from fleet_worker.runner.loading.params import Signature
from fleet_worker.runner.pyoco_engine import FleetEngine
from fleet_worker.runner.recording.recorder import Recorder

PAGE = Path(__file__).parents[2] / "docs/reference/flow-files.md"


def run(flows: Flows, name: str, **params: object) -> RunContext:
    flow, context = flows.resolve(name), RunContext()
    inputs = Signature.of(flow).convert(params, is_complete=True)
    FleetEngine(Recorder([], log_max_bytes=0), Coroutines(), inputs).run(flow, params, context)
    return context


def test_the_flows_of_the_page_do_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    text = PAGE.read_text()
    for code in re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        (tmp_path / code.partition("\n")[0].removeprefix("# ")).write_text(code)
    flows = load_flows(None, str(tmp_path))
    assert (flows.names, flows.broken) == (["isolate", "orders", "patience", "retries"], {})
    orders = next(offer for offer in flows.catalogue().flows if offer.name == "orders")
    assert orders.description == "Fetch the orders of a day."
    assert f"orders.py:{orders.source.line})" in text
    assert json.dumps(orders.params_schema)

    example = re.search(r"`({\"day\".*?})`", text)
    assert example is not None
    assert run(flows, "orders", **json.loads(example[1])).task_records["total"].output == "3 EUR"
    assert run(flows, "retries").task_records["download"].output == 3
    isolated = run(flows, "isolate")
    assert (isolated.status.value, isolated.tasks["optional"].value) == ("COMPLETED", "FAILED")
    with pytest.raises(TimeoutError):
        run(flows, "patience")
