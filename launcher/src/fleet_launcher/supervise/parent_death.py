"""Sets the parent-death signal and then execs a command, so that it does not outlive the launcher.

Usage: python -I -S parent_death.py LAUNCHER_PID SIGNAL COMMAND…

A separate script with few imports: it runs between fork and exec of every part, where code of the (threaded) launcher
must not run.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    launcher_pid, death_signal, *command = sys.argv[1:]
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(death_signal), 0, 0, 0)
    # The launcher may have died before the request above; then no signal will ever come.
    if os.getppid() != int(launcher_pid):
        sys.exit("the launcher is gone")
    # Python ignores SIGPIPE and an ignored signal survives exec.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    try:
        os.execvp(command[0], command)  # noqa: S606 - no shell is wanted
    except OSError as error:
        sys.exit(f"cannot run {command[0]}: {error.strerror}")


if __name__ == "__main__":
    main()
