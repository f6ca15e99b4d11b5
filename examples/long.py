"""Works for a few seconds in small steps and stops when it is asked to. Params: seconds."""

import time

from pyoco import Flow, task

STEP_SECONDS = 0.2


@task
def count(ctx, seconds=5.0):
    steps = max(1, round(seconds / STEP_SECONDS))
    for step in range(1, steps + 1):
        if ctx.is_cancelled:
            print(f"stopped before step {step} of {steps}")
            return step - 1
        time.sleep(STEP_SECONDS)
        print(f"step {step} of {steps}")
    return steps


@task
def report(count):
    return f"{count} steps done"


flow = Flow("long") >> count >> report
