"""A flow that no worker knows before this wheel is in the registry."""

from pyoco import Flow, task


@task
def choose(name="you"):
    return f"Hello, {name}!"


@task
def greet(choose):
    print(choose)
    return choose


flow = Flow("greeting") >> choose >> greet
