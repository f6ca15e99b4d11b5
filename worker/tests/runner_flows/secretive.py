"""Flows that tell secrets."""

import logging
import os
import subprocess

from pyoco import Flow, task


@task
def tell(secret):
    print("printed:", secret)
    print(f"{secret}{secret}", end="")
    os.write(1, f"written: {secret}\n".encode())
    subprocess.run(["echo", "echoed:", secret], check=True)
    logging.warning("logged: %s", secret)
    return {"secret": secret, secret: [1, {"deep": f"<{secret}>"}], "number": 123456789}


@task
def fail(tell):
    raise ValueError(f"{tell['secret']!r} was refused")


telling = Flow("telling") >> tell >> fail


@task
def give_back(secret):
    return [secret, secret.split("-")]


@task
def give_back_much(secret):
    return f"x{secret * 400_000}"


returning = Flow("returning") >> give_back
returning_much = Flow("returning_much") >> give_back_much
