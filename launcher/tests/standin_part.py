"""A part with the behaviour of its arguments: python standin_part.py FOLDER NAME BEHAVIOUR…"""

import os
import pathlib
import signal
import subprocess
import sys

folder, name, behaviours = pathlib.Path(sys.argv[1]), sys.argv[2], set(sys.argv[3:])

if "crash" in behaviours:
    sys.exit("boom")

if "parent" in behaviours:
    # A child that listens to nobody, in a session of its own, as a stuck task could leave it.
    deaf = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); signal.pause()"
    child = subprocess.Popen([sys.executable, "-c", deaf], start_new_session=True, stdout=subprocess.PIPE)
    assert child.stdout
    child.stdout.readline()
    (folder / f"{name}.child").write_text(str(child.pid))


def stop(*_: object) -> None:
    with (folder / "stopped").open("a") as order:
        order.write(f"{name}\n")
    sys.exit(0)


signal.signal(signal.SIGTERM, signal.SIG_IGN if "deaf" in behaviours else stop)
with (folder / "started").open("a") as order:
    order.write(f"{name}\n")
if "unready" not in behaviours:
    (folder / f"{name}.ready").write_text(str(os.getpid()))
print(f"{name} is up", flush=True)
while True:
    signal.pause()
