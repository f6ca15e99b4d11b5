"""Fails on purpose, to show what a failed run looks like. Params: message."""

from pyoco import Flow, task


@task
def prepare():
    print("all is well so far")


@task
def explode(message="something went wrong on purpose"):
    raise ValueError(message)


flow = Flow("failing") >> prepare >> explode
