"""`./fleet docs`: build the site, look at it, write the generated pages, take the picture of the dashboard."""

import argparse
import os
import subprocess
import sys
from pathlib import Path

from .generated import ROOT, stale, write_generated

_DEFAULT_FOLDER = ".fleet/site"


def main() -> int:
    options = _parser().parse_args()
    if options.write_reference:
        for page in write_generated():
            print(f"wrote {page}")
        return 0
    if options.check_reference:
        names = stale()
        if names:
            print(f"{' and '.join(names)}: not what the code makes now; run ./fleet docs --write-reference")
        return 1 if names else 0
    if options.write_screenshot:
        # Playwright takes its time to import.
        from .screenshot import write_screenshot

        print(f"wrote {write_screenshot(options.write_screenshot)}")
        return 0
    if options.serve:
        return _mkdocs("serve", "--strict", "--dev-addr", f"127.0.0.1:{options.port}")
    folder = Path(options.out).resolve()
    code = _mkdocs("build", "--strict", "--quiet", "--site-dir", str(folder))
    if code == 0:
        print(f"the site is in {folder}; open {folder / 'index.html'}")
    return code


def _mkdocs(command: str, *arguments: str) -> int:
    run = [sys.executable, "-m", "mkdocs", command, "--config-file", str(ROOT / "mkdocs.yml"), *arguments]
    # Otherwise the theme prints an advertisement.
    return subprocess.run(run, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, check=False).returncode


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="./fleet docs",
        description="Build the documentation as a static site. A link or an anchor that leads nowhere is an error.",
    )
    parser.add_argument("--out", metavar="FOLDER", default=_DEFAULT_FOLDER, help="where to (default: %(default)s)")
    parser.add_argument("--serve", action="store_true", help="serve it on this machine instead, and follow changes")
    parser.add_argument("--port", type=int, default=8010, help="of --serve (default: %(default)s)")
    parser.add_argument(
        "--write-reference", action="store_true", help="write the files that are generated from the code, then exit"
    )
    parser.add_argument(
        "--check-reference", action="store_true", help="fail if one of them is not what the code makes now"
    )
    parser.add_argument(
        "--write-screenshot",
        metavar="URL",
        help="write the picture of the dashboard of a running stack, e.g. http://127.0.0.1:8000, then exit",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
