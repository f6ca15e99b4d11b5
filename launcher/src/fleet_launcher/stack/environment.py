"""The environment of each part: the launcher's, without those settings of the fleet that are not its business."""

from collections.abc import Mapping

_SERVICES = ("auth", "runs-api", "workers-api", "wheels-api")
_ON_NATS = (*_SERVICES, "worker")
# Secrets, and where they are, with the parts that need them. What is no secret may reach every part of ours.
SECRETS: dict[str, tuple[str, ...]] = {
    "PYOCO_AUTH_PEPPER": ("auth",),
    "PYOCO_AUTH_PEPPER_FILE": ("auth",),
    "PYOCO_RUNS_DATABASE_URL": ("runs-api",),
    "PYOCO_RUNS_DATABASE_PASSWORD_FILE": ("runs-api",),
    "PYOCO_CURSOR_SECRET": ("runs-api",),
    "PYOCO_GATEWAY_SECRET": _SERVICES,
    "PYOCO_GATEWAY_SECRET_FILE": _SERVICES,
    "PYOCO_NATS_URL": _ON_NATS,
    "PYOCO_NATS_NKEY_FILE": _ON_NATS,
    "PYOCO_NATS_TLS_KEY_FILE": _ON_NATS,
    "PYOCO_WORKER_CREDENTIALS_DIR": ("worker",),
}

# Read by PostgreSQL's library besides the ledger's address. Where that is none, flows may need them.
_OF_POSTGRESQL = ("PGPASSWORD", "PGPASSFILE", "PGSERVICEFILE")


def environment_of(part: str, environ: Mapping[str, str]) -> dict[str, str]:
    """`part` is a name of the part table: `runs-api`, `worker-2`, `nats`."""
    kind = "worker" if part.startswith("worker-") else part
    withheld = _OF_POSTGRESQL if kind != "runs-api" and environ.get("PYOCO_RUNS_DATABASE_URL") else ()
    return {
        name: value
        for name, value in environ.items()
        if name not in withheld and (not name.startswith("PYOCO_") or _may_have(kind, name))
    }


def _may_have(kind: str, name: str) -> bool:
    # NATS and nginx know none of our settings: they have configuration files.
    return kind in SECRETS.get(name, _ON_NATS)
