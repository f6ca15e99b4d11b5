"""How the parts of a stack get to NATS: its address, and who each of them is there."""

from collections.abc import Iterable
from dataclasses import dataclass

from ..data_dir.nats_users import NatsUsers


@dataclass(frozen=True, slots=True)
class NatsAccess:
    url: str
    # None: whoever reaches NATS may do everything there, or the operator has said who the parts are.
    users: NatsUsers | None

    def env(self, role: str) -> dict[str, str]:
        if self.users is None:
            return {"PYOCO_NATS_URL": self.url}
        return {"PYOCO_NATS_URL": self.url, "PYOCO_NATS_NKEY_FILE": str(self.users.role_file(role))}

    def worker_env(self, worker_id: str) -> dict[str, str]:
        if self.users is None:
            return {"PYOCO_NATS_URL": self.url}
        return {"PYOCO_NATS_URL": self.url, "PYOCO_NATS_NKEY_FILE": str(self.users.worker_file(worker_id))}


def grant_stack_workers(users: NatsUsers, worker_ids: Iterable[str], tags: Iterable[str]) -> None:
    """Let in the workers that the stack starts itself, and of those no other."""
    worker_ids, tags = list(worker_ids), list(tags)
    users.forget_stack_workers(except_for=worker_ids)
    for worker_id in worker_ids:
        users.grant(worker_id, tags, kind="stack")
