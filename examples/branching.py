"""A choice and a loop: a small or a large order, then one parcel at a time. Params: items (a list)."""

from pyoco import Flow, task
from pyoco.dsl.syntax import switch


@task
def sort_order(ctx, items=("a cup", "a spoon")):
    ctx.params["items"] = list(items)
    ctx.scratch["size"] = "large" if len(items) > 3 else "small"
    return ctx.scratch["size"]


@task
def book_van():
    return "by van"


@task
def book_bicycle():
    return "by bicycle"


@task
def pack(ctx):
    item = ctx.get_var("item")
    print(f"packed {item} ({ctx.loop.iteration} of {ctx.loop.count})")
    return item


@task
def send(ctx):
    how = ctx.get_result("book_van") or ctx.get_result("book_bicycle")
    return f"{len(ctx.params['items'])} parcels sent {how}"


flow = (
    Flow("branching")
    >> sort_order
    >> switch("$ctx.scratch.size")["large" >> book_van, "small" >> book_bicycle]
    >> pack["$ctx.params.items as item"]
    >> send
)
