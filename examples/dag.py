"""Three tasks that run at the same time between a first and a last one. Params: seconds."""

import time

from pyoco import Flow, task


def _measure(seconds):
    started_at = time.time()
    time.sleep(seconds)
    return {"started_at": started_at, "ended_at": time.time()}


@task
def prepare():
    print("three measurements follow, all at once")


@task
def measure_east(seconds=0.5):
    return _measure(seconds)


@task
def measure_north(seconds=0.5):
    return _measure(seconds)


@task
def measure_west(seconds=0.5):
    return _measure(seconds)


@task
def compare(measure_east, measure_north, measure_west):
    spans = {"east": measure_east, "north": measure_north, "west": measure_west}
    first = min(span["started_at"] for span in spans.values())
    for name, span in spans.items():
        print(f"{name}: from {span['started_at'] - first:.3f} s to {span['ended_at'] - first:.3f} s")
    latest_start = max(span["started_at"] for span in spans.values())
    earliest_end = min(span["ended_at"] for span in spans.values())
    return {"overlap_seconds": earliest_end - latest_start}


flow = Flow("dag") >> prepare >> [measure_east, measure_north, measure_west] >> compare
