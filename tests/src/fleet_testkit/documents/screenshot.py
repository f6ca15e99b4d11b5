"""docs/dashboard.png: the dashboard of a running stack with runs of the examples, in a real Chromium."""

import httpx

from ..chromium import find_chromium, running_chromium
from ..runs import submit, wait_ended
from .generated import ROOT

PICTURE = ROOT / "docs" / "dashboard.png"
# Small enough to be loaded with the README.
MOST_BYTES = 150_000


def write_screenshot(url: str) -> str:
    """Submit runs that end differently, show one of them, and write the picture; return its name."""
    program, why = find_chromium()
    if program is None:
        raise SystemExit(why)
    with httpx.Client(base_url=url, timeout=30) as client:
        ended = [
            submit(client, "hello", name="Ada"),
            submit(client, "branching"),
            submit(client, "failing"),
            submit(client, "hello", name="Grace"),
            submit(client, "dag", seconds=0.5),
        ]
        wait_ended(client, ended)
        submit(client, "hello", tag="gpu")
        submit(client, "long", seconds=30)
    with running_chromium(program) as browser:
        page = browser.new_page(viewport={"width": 1240, "height": 770}, locale="en", color_scheme="light")
        page.goto(f"{url}/#/runs/{ended[-1]}")
        page.locator("#detail .task").nth(3).wait_for()
        page.locator("#runs .badge.running").first.wait_for()
        page.screenshot(path=PICTURE)
    if (size := PICTURE.stat().st_size) > MOST_BYTES:
        raise SystemExit(f"{PICTURE} has {size} bytes, more than {MOST_BYTES}")
    return str(PICTURE.relative_to(ROOT))
