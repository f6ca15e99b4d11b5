"""The dashboard's page of flows, in a real browser."""

import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from nats.aio.client import Client
from playwright.sync_api import Page, expect

from fleet_contracts.catalogue import (
    REPLACES_RESULT_OF,
    BrokenSource,
    Catalogue,
    FlowDefaults,
    FlowGraph,
    FlowOffer,
    FlowSource,
    GraphEdge,
    GraphNode,
    SourceKind,
    WorkerCatalogue,
)
from fleet_contracts.names import WireNames
from fleet_contracts.retry import RetryPolicy
from fleet_contracts.status import WorkerState
from fleet_contracts.worker_record import WorkerRecord
from fleet_testkit.fleet import Fleet
from fleet_testkit.runs import read
from fleet_testkit.wire import Wire

pytestmark = [
    # Chromium may have to be installed first.
    pytest.mark.timeout(900),
    pytest.mark.embedded_only("the page is the same in containers"),
]

WORKER, TAG, FLOW = "only-in-kv", "browsers-flows", "Browser's greeting/1"
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "description": "Who is greeted."},
        "times": {"type": "integer", "minimum": 1, "default": 2},
        "tone": {"anyOf": [{"enum": ["warm", "cool"]}, {"type": "null"}], "default": None},
        "greet": {"type": "string", "default": "", REPLACES_RESULT_OF: "greet"},
    },
    "required": ["name"],
    "additionalProperties": False,
}


def catalogue(*flows: FlowOffer) -> WorkerCatalogue:
    broken = BrokenSource(place="etl.py", exc_type="ModuleNotFoundError", message="No module named 'pandas'", line=3)
    return WorkerCatalogue(
        worker_id=WORKER,
        instance_id="i1",
        tags=[TAG],
        loaded_at=time.time(),
        catalogue=Catalogue(flows=list(flows), broken=[broken]),
    )


def greeting(description: str) -> FlowOffer:
    return FlowOffer(
        name=FLOW,
        source=FlowSource(kind=SourceKind.FILE, place="greet.py", line=12),
        description=description,
        params_schema=SCHEMA,
        graph=FlowGraph(
            nodes=[GraphNode(name="greet"), GraphNode(name="tone", kind="switch"), GraphNode(name="shout")],
            edges=[GraphEdge(source="greet", target="tone"), GraphEdge(source="tone", target="shout", label="warm")],
        ),
        defaults=FlowDefaults(retry=RetryPolicy(max_attempts=3), timeout_sec=600, tag=TAG),
    )


@pytest.fixture
def publish(wire: Wire, page: Page) -> Any:
    """Write the worker and its catalogue into KV; None takes both away."""
    names = WireNames()

    def use(work: Callable[[Client], Any]) -> None:
        # Another thread's asyncio loop: this one's is Playwright's.
        with ThreadPoolExecutor(1) as threads:
            threads.submit(wire.use, work).result()

    def put(wanted: WorkerCatalogue | None) -> None:
        later = time.time() + 3600
        record = WorkerRecord(
            worker_id=WORKER,
            instance_id="i1",
            state=WorkerState.IDLE,
            last_seen_at=later,
            last_heartbeat_at=later,
            tags=[TAG],
        )

        async def write(client: Client) -> None:
            js = client.jetstream()
            workers, flows = [await js.key_value(name) for name in (names.workers_kv_bucket, names.flows_kv_bucket)]
            if wanted is None:
                await flows.delete(WORKER)
                await workers.delete(WORKER)
            else:
                await flows.put(WORKER, wanted.encode())
                await workers.put(WORKER, record.encode())

        use(write)

    yield put
    put(None)


def test_a_flow_is_shown_as_it_changes_and_is_run_with_what_its_schema_says(
    stack: Fleet, page: Page, publish: Callable[[WorkerCatalogue | None], None]
) -> None:
    faults: list[str] = []
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.set_default_timeout(60_000)
    page.goto(f"{stack.url}/#/flows")
    publish(catalogue(greeting("Greets somebody.")))
    row = page.locator("#flows tr", has_text=FLOW)
    expect(row).to_contain_text("Greets somebody.", timeout=60_000)
    expect(page.locator("#flows-problems")).to_contain_text("etl.py, line 3")
    expect(page.locator("#flows-problems")).to_contain_text("ModuleNotFoundError: No module named 'pandas'")
    row.locator("a").click()
    detail = page.locator("#flow-detail")
    for text in (
        "name: string",
        "required",
        "times: integer = 2",
        'tone: "warm" | "cool" | null = null',
        "takes the place of its result: greet.",
        "greet.py, line 12",
    ):
        expect(detail).to_contain_text(text)
    expect(detail).not_to_contain_text("greet: string")
    expect(detail.locator(".graph")).to_contain_text("tone switch —warm→ shout")
    # Without a request of the page's own.
    publish(catalogue(greeting("Greets somebody else.")))
    expect(row).to_contain_text("Greets somebody else.", timeout=60_000)
    expect(detail).to_contain_text("Greets somebody else.")
    detail.get_by_role("button", name="Run this flow").click()
    form = page.locator("#submit-form")
    assert json.loads(form.locator("[name=params]").input_value()) == {"name": "", "times": 2, "tone": None}
    form.locator("[name=params]").fill('{"name": 7}')
    form.get_by_role("button", name="Submit").click()
    expect(form.locator(".form-problem")).to_contain_text('params.name: value is not of type "string"')
    form.locator("[name=params]").fill('{"name": "Ada"}')
    form.get_by_role("button", name="Submit").click()
    page.wait_for_url("**/#/runs/*")
    run = read(stack.client, page.url.rpartition("/")[2])
    assert (run["flow_name"], run["tag"], run["params"]) == (FLOW, TAG, {"name": "Ada"})
    assert faults == []
