"""The environment of each part: the launcher's, without secrets and settings that the part does not need."""

from collections.abc import Mapping

_SERVICES = ("auth", "runs-api", "workers-api", "wheels-api")
_ON_NATS = (*_SERVICES, "worker")
# Variables that hold secrets or their paths, with the parts that get them. All our parts get the other settings.
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
    "PYOCO_FLOW_ENV_FILE": ("worker",),
    "PYOCO_WORKER_CREDENTIALS_DIR": ("worker",),
}

# Read by libpq besides the ledger's URL. Withheld only if that is set: otherwise flows may need them.
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
