"""Flows with loops."""

from pyoco import Flow, task


@task
def visit(ctx):
    if ctx.loop.item == "bad":
        raise ValueError("bad item")
    return ctx.loop.index


visiting = Flow("visiting") >> visit["$ctx.params.items as item"]


@task
def count():
    return 1


counting = Flow("counting") >> count[1000]


@task
def inner(ctx):
    return len(ctx.loops)


nested = Flow("looping_twice") >> (inner[2])["$ctx.params.items as item"]
