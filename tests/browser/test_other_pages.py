"""A real browser, and pages that want to use it against the fleet of the person who opens them."""

import base64
import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page

from fleet_testkit.fleet import Fleet
from fleet_testkit.http_servers import serving
from fleet_testkit.runs import read, submit
from fleet_testkit.waiting import wait_until
from fleet_testkit.wheels import build_wheel

# Chromium may have to be installed first.
pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(900),
    pytest.mark.embedded_only("what the gateway refuses is the same in containers: gateway-nginx/tests"),
]

# The result: all that the page was able to read.
ATTACK = """
async ({target, wheelName, wheel, flow}) => {
  const bytes = Uint8Array.from(atob(wheel), (character) => character.charCodeAt(0));
  const file = new File([bytes], wheelName);
  const run = JSON.stringify({flow_name: flow});
  const seen = {};
  const note = async (name, asking) => {
    try {
      const answer = await asking;
      const text = await answer.text();
      if (text || answer.type !== "opaque") seen[name] = `${answer.status} ${text}`;
    } catch { /* The browser refuses. */ }
  };
  const form = () => { const form = new FormData(); form.append("wheel", file); return form; };
  const simple = {method: "POST", mode: "no-cors"};
  const blob = new Blob([run], {type: "application/json"});
  const headers = {"Content-Type": "application/json"};
  await note("simple submit", fetch(`${target}/runs`, {...simple, body: run}));
  await note("submit of a blob", fetch(`${target}/runs`, {...simple, body: blob}));
  await note("simple upload", fetch(`${target}/wheels`, {...simple, body: form()}));
  await note("submit", fetch(`${target}/runs`, {method: "POST", headers, body: run}));
  await note("upload", fetch(`${target}/wheels`, {method: "POST", body: form(), credentials: "include"}));
  await note("drain", fetch(`${target}/workers/any/drain`, simple));
  await note("delete", fetch(`${target}/dlq`, {method: "DELETE"}));
  navigator.sendBeacon(`${target}/runs`, run);
  await note("list", fetch(`${target}/runs`));
  await note("opaque list", fetch(`${target}/runs`, {mode: "no-cors"}));
  await note("health", fetch(`${target}/health`));
  await new Promise((done) => {
    const events = new EventSource(`${target}/workers/events`);
    for (const kind of ["message", "workers", "worker", "heartbeat"]) {
      events.addEventListener(kind, (event) => { seen.events = event.data; });
    }
    events.onerror = () => { events.close(); done(); };
  });
  await new Promise((done) => {
    const script = document.createElement("script");
    script.src = `${target}/static/config.js`;
    script.onload = script.onerror = done;
    document.head.append(script);
  });
  if (window.PYOCO) seen.script = JSON.stringify(window.PYOCO);
  return seen;
}
"""
# Forms leave the page: each needs one of its own.
FORM = """
({target, path, enctype, wheelName, wheel, flow}) => {
  const form = document.createElement("form");
  Object.assign(form, {action: `${target}${path}`, method: "POST", enctype});
  const input = document.createElement("input");
  if (wheel) {
    const chosen = new DataTransfer();
    chosen.items.add(new File([Uint8Array.from(atob(wheel), (c) => c.charCodeAt(0))], wheelName));
    Object.assign(input, {type: "file", name: "wheel", files: chosen.files});
  } else {
    Object.assign(input, {name: `{"flow_name": "${flow}", "params": {"x": "`, value: `"}}`});
  }
  form.append(input);
  document.body.append(form);
  form.submit();
}
"""


class _EmptyPage(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(b"<!doctype html><title>Somebody else's page</title>")

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(scope="module")
def other_port() -> Iterator[int]:
    """The port of a server of another origin's pages."""
    with serving(_EmptyPage) as port:
        yield port


def gateway_lines(fleet: Fleet) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in fleet.log("gateway").splitlines()]
    return [line for line in lines if line["event"] == "request"]


@pytest.mark.parametrize("host", ["evil.example", "localhost"], ids=["cross-site", "same-site"])
def test_a_page_of_another_origin_reads_nothing_and_causes_nothing(
    stack: Fleet, page: Page, other_port: int, tmp_path: Path, host: str
) -> None:
    target, flow = f"http://localhost:{stack.port}", f"attacked-from-{host}"
    wheel = build_wheel(tmp_path, f"planted-{host}")
    values = {
        "target": target,
        "flow": flow,
        "wheelName": wheel.name,
        "wheel": base64.b64encode(wheel.read_bytes()).decode(),
    }
    begun = len(gateway_lines(stack))
    page.goto(f"http://{host}:{other_port}/")
    assert page.evaluate(ATTACK, values) == {}
    for path, enctype in (("/wheels", "multipart/form-data"), ("/runs", "text/plain")):
        page.goto(f"http://{host}:{other_port}/")
        with page.expect_navigation(url=f"{target}{path}"):
            page.evaluate(
                FORM,
                {
                    **values,
                    "path": path,
                    "enctype": enctype,
                    "wheel": "" if path == "/runs" else values["wheel"],
                },
            )
        assert "a page of another origin may change nothing here" in page.content()

    def answers() -> list[tuple[str, str, int]]:
        lines = [line["meta"] for line in gateway_lines(stack)[begun:]]
        return [(line["method"], line["path"], line["status_code"]) for line in lines]

    # They did arrive: nothing but the gateway has refused them.
    writes = wait_until(
        lambda: [found for found in answers() if found[0] == "POST"] if len(answers()) >= 12 else [],
        what="the lines of all requests",
    )
    assert {status for _, _, status in writes} == {403}
    assert {path for _, path, _ in writes} >= {"/runs", "/wheels", "/workers/any/drain"}
    assert stack.client.get("/runs", params={"flow": flow}).json() == []
    assert wheel.name not in stack.client.get("/wheels").text


def test_a_page_whose_name_is_made_to_point_here_reads_nothing(stack: Fleet, page: Page) -> None:
    """DNS rebinding: for the browser the gateway is the page's own origin, so nothing but the name gives it away."""
    answer = page.goto(f"http://evil.example:{stack.port}/")
    assert answer is not None
    assert answer.status == 421
    asked = """
    async () => {
      const ask = async (...request) => (await fetch(...request)).status;
      const post = {method: "POST", headers: {"Content-Type": "application/json"}, body: '{"flow_name": "rebound"}'};
      const reads = [await ask("/"), await ask("/runs"), await ask("/metrics"), await ask("/health")];
      return [...reads, await ask("/runs", post)];
    }
    """
    assert page.evaluate(asked) == [421] * 5
    assert stack.client.get("/runs", params={"flow": "rebound"}).json() == []


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_the_dashboard_lists_runs_and_changes_them(stack: Fleet, page: Page, host: str) -> None:
    faults: list[str] = []
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("console", lambda said: faults.append(said.text) if said.type == "error" else None)
    run_id = submit(stack.client, "hello", tag="nobody-for-browsers")
    page.goto(f"http://{host}:{stack.port}/")
    page.locator(f"#runs a[href*='{run_id}']").first.click(timeout=60_000)
    page.locator("#detail button", has_text="Cancel").click(timeout=60_000)
    wait_until(lambda: read(stack.client, run_id)["status"] == "CANCELLED", within=60, what="the run cancelled")
    page.locator("#detail", has_text="CANCELLED").wait_for(timeout=60_000)
    assert faults == []
