"""A real Chromium for tests: this machine's own, or Debian's, installed when it is missing."""

import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

_PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
_INSTALL_SECONDS = 600
_OPTIONS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    # Names of other sites: whatever ends in .example is on this machine.
    "--host-resolver-rules=MAP *.example 127.0.0.1",
    # Newer versions keep pages of the world from this machine by themselves; the gateway must not depend on that.
    "--disable-features=LocalNetworkAccessChecks,PrivateNetworkAccessChecks,BlockInsecurePrivateNetworkRequests",
)


def find_chromium() -> tuple[Path | None, str]:
    """Where it is, or why it is nowhere. As root on a Debian machine it is installed, by one process for all."""
    with (Path(tempfile.gettempdir()) / "pyoco-fleet-chromium.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (found := _installed()) is not None:
            return found, ""
        if os.geteuid() != 0 or shutil.which("apt-get") is None:
            return None, "there is no chromium on this machine; install it, or run the tests as root on Debian"
        said = _install()
        return _installed(), f"apt-get could not install chromium: {said}"


@contextmanager
def running_chromium(program: Path) -> Iterator[Browser]:
    """A browser without a window. While it runs, no asyncio loop can in this thread: Playwright's own does."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=_OPTIONS)
        try:
            yield browser
        finally:
            browser.close()


def _installed() -> Path | None:
    found = next(filter(None, map(shutil.which, _PROGRAMS)), None)
    return None if found is None else Path(found)


def _install() -> str:
    """What the last command had to say."""
    install = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", "chromium"]
    said = ""
    # The lists of packages may be missing or old: only then they are fetched.
    for command in (install, ["apt-get", "update", "-qq"], install):
        done = subprocess.run(
            command,
            env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
            capture_output=True,
            text=True,
            timeout=_INSTALL_SECONDS,
            check=False,
        )
        said = done.stderr.strip()[-500:]
        if _installed() is not None:
            break
    return said
