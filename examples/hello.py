"""Two tasks, one after the other. Params: name."""

from pyoco import Flow, task


@task
def choose(name="world"):
    print(f"greeting {name}")
    return name


@task
def greet(choose):
    greeting = f"Hello, {choose}!"
    print(greeting)
    return greeting


flow = Flow("hello") >> choose >> greet
