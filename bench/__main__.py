"""`./fleet bench`: the fleet beside its peer, pyoco-server 0.5.1, measured in turns in one run."""

import argparse
import signal
import sys
import tempfile
import time
from pathlib import Path

from fleet_launcher.settings import LauncherSettings

from .errors import BenchFailed
from .figures import Figure
from .load import LoadProcess, raise_open_files_limit
from .measures import GROUPS
from .peer_env import PeerEnv, prepare_peer
from .progress import say
from .report import document, draw_chart, missed_limits, table
from .session import FULL, QUICK, Effort, Session
from .sides import both_sides

_INTERRUPTED_EXIT_CODE = 130


def main() -> int:
    options = _options()
    signal.signal(signal.SIGINT, _interrupt)
    signal.signal(signal.SIGTERM, _interrupt)
    raise_open_files_limit()
    folder = LauncherSettings.load().data_dir.absolute() / "bench"
    folder.mkdir(parents=True, exist_ok=True)
    begun = time.monotonic()
    try:
        peer_env = prepare_peer(folder / "peer")
        wanted = [name for name in GROUPS if not options.only or name in options.only]
        figures, failed = measure(wanted, QUICK if options.quick else FULL, folder, peer_env)
        _show(figures, folder, peer_env, options.json)
    except BenchFailed as error:
        say(str(error))
        return 1
    except KeyboardInterrupt:
        say("interrupted; everything is stopped")
        return _INTERRUPTED_EXIT_CODE
    missed = missed_limits(figures)
    for sentence in missed:
        say(sentence)
    say(f"done in {time.monotonic() - begun:.0f} s" + (f"; not measured: {', '.join(failed)}" if failed else ""))
    return 1 if failed or missed else 0


def measure(wanted: list[str], effort: Effort, folder: Path, peer_env: PeerEnv) -> tuple[list[Figure], list[str]]:
    """The figures of the wanted groups, and the groups that failed: one that fails does not stop the others."""
    figures: list[Figure] = []
    failed = []
    # Beside the data of a real stack, so that it lies on the same kind of disk.
    with (
        tempfile.TemporaryDirectory(prefix="run-", dir=folder, ignore_cleanup_errors=True) as scratch,
        LoadProcess() as load,
        both_sides(Path(scratch), peer_env) as (ours, peer),
    ):
        session = Session(ours, peer, load, effort)
        for name in wanted:
            say(f"measuring {name}")
            begun = time.monotonic()
            try:
                figures += GROUPS[name](session)
                say(f"{name} took {time.monotonic() - begun:.0f} s")
            except Exception as error:  # noqa: BLE001 - whatever it is, the other groups can still be measured
                say(f"{name} failed: {error if isinstance(error, BenchFailed) else repr(error)}")
                failed.append(name)
    return figures, failed


def _show(figures: list[Figure], folder: Path, peer_env: PeerEnv, copy: Path | None) -> None:
    if not figures:
        return
    print(table(figures))
    figures_file, chart = folder / "figures.json", folder / "chart.png"
    figures_file.write_text(document(figures))
    if copy is not None:
        copy.write_text(document(figures))
    draw_chart(figures_file, chart, python=peer_env.python)
    say(f"chart: {chart}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="./fleet bench",
        description=(
            "Measure the fleet beside its peer, pyoco-server 0.5.1, in turns in one run. At the first use the peer "
            "gets an environment of its own under the data dir. A ratio above 1 means that the fleet is better."
        ),
    )
    parser.add_argument("--quick", action="store_true", help="fewer and shorter rounds: under three minutes")
    parser.add_argument(
        "--only",
        action="append",
        choices=sorted(GROUPS),
        metavar="NAME",
        help=f"one of {', '.join(GROUPS)}; may repeat",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there, too")
    return parser.parse_args()


def _interrupt(*_: object) -> None:
    # What follows is an orderly stop; a second Ctrl-C would only leave something behind.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
