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
    # Names of other sites: *.example resolves to this machine.
    "--host-resolver-rules=MAP *.example 127.0.0.1",
    # Newer versions block requests of public pages to local addresses; the gateway must not depend on that.
    "--disable-features=LocalNetworkAccessChecks,PrivateNetworkAccessChecks,BlockInsecurePrivateNetworkRequests",
)


def find_chromium() -> tuple[Path | None, str]:
    """The path of Chromium, or why there is none. As root on Debian it is installed, by one process for all."""
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
    """A headless browser. While it runs, this thread can run no other asyncio loop than Playwright's."""
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
    """Install Chromium; return the stderr of the last command."""
    install = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", "chromium"]
    said = ""
    # The package lists are updated only if the first install fails: they may be missing or old.
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
