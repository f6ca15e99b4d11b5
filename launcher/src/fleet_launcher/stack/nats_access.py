"""How the parts of a stack connect to NATS: its URL, and the credentials of each part."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ..data_dir.nats_users import NatsUsers


@dataclass(frozen=True, slots=True)
class NatsAccess:
    url: str
    # None: NATS has no users, or the operator configures the credentials of the parts.
    users: NatsUsers | None

    def env(self, role: str) -> dict[str, str]:
        return self._env(None if self.users is None else self.users.role_file(role))

    def worker_env(self, worker_id: str) -> dict[str, str]:
        return self._env(None if self.users is None else self.users.worker_file(worker_id))

    def _env(self, seed: Path | None) -> dict[str, str]:
        credentials = {} if seed is None else {"PYOCO_NATS_NKEY_FILE": str(seed)}
        return {"PYOCO_NATS_URL": self.url, **credentials}


def grant_stack_workers(users: NatsUsers, worker_ids: Iterable[str], tags: Iterable[str]) -> None:
    """Grant credentials to the workers that the stack starts; revoke those of workers it no longer starts."""
    worker_ids, tags = list(worker_ids), list(tags)
    users.forget_stack_workers(except_for=worker_ids)
    for worker_id in worker_ids:
        users.grant(worker_id, tags, kind="stack")
