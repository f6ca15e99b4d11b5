"""The NATS users of a stack: an nkey seed for each role and worker, made once, and the server's users file."""

import os
import signal
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ValidationError

from fleet_contracts.names import Tag, WireNames
from fleet_contracts.nats_roles import FLEET_ACCOUNT, SERVICE_ROLES, NatsUser, accounts_config, open_config, worker
from fleet_kit.files.secrets import SecretFileError, write_secret

from ..errors import LaunchError
from .folder import DataFolder
from .state import present_state

_RELOAD_SECONDS = 10.0
_LOOK_SECONDS = 0.02
_RELOADED = b"Reloaded server configuration"
_NOT_RELOADED = b"Failed to reload"


class WorkerGrant(BaseModel):
    """A worker that may connect to NATS: its public key, and the tags it may take jobs of."""

    worker_id: str
    tags: list[Tag]
    public_key: str
    # `stack`: for a worker that the stack starts itself; `added`: made by a command.
    kind: Literal["stack", "added"]


class NatsUsers:
    def __init__(self, folder: DataFolder, names: WireNames) -> None:
        self._folder = folder
        self._names = names

    @classmethod
    def of_stack(cls, folder: DataFolder, otherwise: WireNames) -> "NatsUsers":
        """With the wire names of the last start: a command that adds a user may have another environment."""
        try:
            names = WireNames.model_validate_json(folder.wire_names.read_bytes())
        except FileNotFoundError:
            names = otherwise
        except (OSError, ValidationError) as error:
            raise LaunchError(
                f"{folder.wire_names} cannot be read; start the stack again to write it anew"
            ) from error
        return cls(folder, names)

    @property
    def are_enforced(self) -> bool:
        return self._folder.wire_names.exists()

    def role_file(self, role: str) -> Path:
        """The seed file of a role; made if missing."""
        file = self._folder.credentials / f"{role}.nk"
        self._public_key(file)
        return file

    def worker_file(self, worker_id: str) -> Path:
        return self._workers / f"{worker_id}.nk"

    def grant(
        self, worker_id: str, tags: Iterable[str], *, kind: Literal["stack", "added"], out: Path | None = None
    ) -> Path:
        """Allow a worker to connect; return its seed file, which is made only if missing."""
        tags = list(dict.fromkeys(tags))
        try:
            worker(self._names, worker_id, tags)
        except ValueError as error:
            raise LaunchError(str(error)) from error
        file = out or self.worker_file(worker_id)
        granted = WorkerGrant(worker_id=worker_id, tags=tags, public_key=self._public_key(file), kind=kind)
        write_secret(self._workers / f"{worker_id}.json", granted.model_dump_json())
        return file

    def revoke(self, worker_id: str) -> None:
        grant = self._workers / f"{worker_id}.json"
        if worker_id not in {granted.worker_id for granted in self.grants()}:
            raise LaunchError(
                f"no worker {worker_id} has credentials here; `worker-credentials --list` shows who has"
            )
        grant.unlink()
        self.worker_file(worker_id).unlink(missing_ok=True)

    def grant_stack_workers(self, worker_ids: Sequence[str], tags: Sequence[str]) -> None:
        """Grant credentials to the workers that the stack starts; revoke those of workers it no longer starts."""
        for granted in self.grants():
            if granted.kind == "stack" and granted.worker_id not in worker_ids:
                self.revoke(granted.worker_id)
        for worker_id in worker_ids:
            self.grant(worker_id, tags, kind="stack")

    def grants(self) -> list[WorkerGrant]:
        found = []
        for file in sorted(self._workers.glob("*.json")):
            try:
                found.append(WorkerGrant.model_validate_json(file.read_bytes()))
            except ValidationError as error:
                raise LaunchError(
                    f"{file} is damaged; remove it and make the credentials of that worker anew"
                ) from error
        return found

    def config(self) -> str:
        """The users as a NATS server's configuration; public keys only."""
        roles = [
            NatsUser(role, self._public_key(self.role_file(role)), permissions(self._names))
            for role, permissions in SERVICE_ROLES.items()
        ]
        workers = [
            NatsUser(granted.worker_id, granted.public_key, worker(self._names, granted.worker_id, granted.tags))
            for granted in self.grants()
        ]
        return accounts_config(roles, workers)

    def enforce(self) -> None:
        """Write the users file for the start of NATS, and the wire names for commands that add users later."""
        names = {name: getattr(self._names, name) for name in WireNames.model_fields}
        write_secret(self._folder.wire_names, WireNames(**names).model_dump_json())
        write_secret(self._folder.nats_users, self.config())

    def allow_anonymous(self) -> None:
        """Write a users file without authentication: every client of NATS may do everything."""
        self._folder.wire_names.unlink(missing_ok=True)
        write_secret(self._folder.nats_users, open_config())

    def leave_to_operator(self) -> None:
        """Remove both files: the operator runs NATS."""
        self._folder.wire_names.unlink(missing_ok=True)
        self._folder.nats_users.unlink(missing_ok=True)

    def adopt_store(self) -> None:
        """Move the streams of a version without accounts to the fleet's account. NATS must not run."""
        accounts = self._folder.nats_store / "jetstream"
        earlier, ours = accounts / "$G", accounts / FLEET_ACCOUNT
        if earlier.is_dir() and not ours.exists():
            earlier.rename(ours)

    def reload_running_nats(self) -> bool:
        """Write the users file and make NATS reload it; False if no NATS of this stack runs."""
        write_secret(self._folder.nats_users, self.config())
        state = present_state(self._folder)
        pid = next((part.pid for part in state.parts if part.name == "nats"), None) if state else None
        if pid is None:
            return False
        # Twice: the first reload makes a new account known, the second its imports.
        for _ in range(2):
            self._reload(pid)
        return True

    def _reload(self, pid: int) -> None:
        log = self._folder.log("nats")
        logged_before = log.stat().st_size
        os.kill(pid, signal.SIGHUP)
        deadline = time.monotonic() + _RELOAD_SECONDS
        while time.monotonic() < deadline:
            with log.open("rb") as file:
                file.seek(logged_before)
                logged = file.read()
            if _RELOADED in logged:
                return
            if _NOT_RELOADED in logged:
                break
            time.sleep(_LOOK_SECONDS)
        raise LaunchError(f"NATS did not take its users anew; see {log}, and start the stack again")

    @property
    def _workers(self) -> Path:
        return self._folder.credentials / "workers"

    def _public_key(self, file: Path) -> str:
        """The public key of the seed in the file; the seed is made if missing."""
        # Imported when needed: most commands are quicker without it.
        from fleet_kit.files.nkeys import make_nkey, read_nkey

        try:
            nkey = read_nkey(file, setting="a NATS user") if file.exists() else make_nkey(file)
        except SecretFileError as error:
            raise LaunchError(f"{error}; or remove the file, and another is made") from error
        return nkey.public_key
