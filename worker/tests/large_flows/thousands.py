"""A flow of ten thousand tasks, in a folder of its own: other workers need not load it."""

from pyoco import Flow, task
from pyoco.dsl.syntax import FlowFragment


def numbered(number):
    def one():
        return number

    one.__name__ = f"task_{number:05d}"
    return task(one)


# In a loop, tasks run one after another; pyoco's graph looks at every task again for each that ends.
steps = [step for number in range(10_000) for step in numbered(number).to_subflow().steps]
thousands = Flow("thousands") >> FlowFragment(steps)[1]
