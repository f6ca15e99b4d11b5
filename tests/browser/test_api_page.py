"""The page of the API, in a real browser."""

import json

import httpx
import pytest
from playwright.sync_api import Page, expect

from fleet_testkit.fleet import Fleet

pytestmark = [
    # Chromium may have to be installed first.
    pytest.mark.timeout(900),
    pytest.mark.embedded_only("the page is the same in containers"),
]


def test_the_page_of_the_api_shows_every_route_and_tries_them_out_with_the_key(stack: Fleet, page: Page) -> None:
    faults: list[str] = []
    asked: list[str] = []
    page.on("pageerror", lambda error: faults.append(str(error)))
    # What the policy of the page forbids is an error of the console, too.
    page.on("console", lambda said: faults.append(said.text) if said.type in ("error", "warning") else None)
    page.on("request", lambda request: asked.append(request.url))
    page.set_default_timeout(60_000)
    page.emulate_media(color_scheme="dark")
    page.goto(stack.url)
    page.evaluate("sessionStorage.setItem('pyoco.api-key', 'the-key')")
    page.get_by_role("link", name="API", exact=True).click()
    document = httpx.get(f"{stack.url}/openapi.json").json()
    routes = [(method.upper(), path) for path, methods in document["paths"].items() for method in methods]
    expect(page.locator(".opblock")).to_have_count(len(routes), timeout=60_000)
    shown = zip(
        page.locator(".opblock-summary-method").all(), page.locator(".opblock-summary-path").all(), strict=True
    )
    assert [(method.inner_text(), path.inner_text().replace("\u200b", "")) for method, path in shown] == routes
    expect(page.locator("html")).to_have_class("dark-mode")

    watch = page.locator("#operations-Runs-watch_run")
    watch.locator(".opblock-summary-control").click()
    expect(watch.locator(".response li code").first).to_have_text("snapshot")

    health = page.locator("#operations-Health_and_metrics-health")
    health.locator(".opblock-summary-control").click()
    health.get_by_role("button", name="Execute").click()
    expect(health.locator(".live-responses-table .response-col_status").last).to_contain_text("200")
    expect(health.locator(".live-responses-table")).to_contain_text('"status": "ok"')

    runs = page.locator("#operations-Runs-list_runs")
    runs.locator(".opblock-summary-control").click()
    with page.expect_response(f"{stack.url}/runs?limit=50") as answered:
        runs.get_by_role("button", name="Execute").click()
    assert answered.value.request.headers["x-api-key"] == "the-key"
    assert isinstance(json.loads(answered.value.text()), list)
    assert faults == []
    assert [url for url in asked if not url.startswith((f"{stack.url}/", "data:"))] == []
