"""The command `pyoco-fleet-secrets`: makes every secret of a fleet in containers once, in a folder per container."""

import os
import secrets
import sys
from pathlib import Path
from typing import Annotated

import typer

from fleet_contracts.log_events import SERVICE_HTTP
from fleet_contracts.names import WireNames
from fleet_contracts.nats_roles import SERVICE_ROLES, NatsUser, accounts_config, cluster_config, worker
from fleet_contracts.wheel import split_tags
from fleet_kit.files.nkeys import make_nkey, read_nkey
from fleet_kit.files.secrets import SecretFileError, read_secret, write_secret
from fleet_kit.logs.command import say, say_failure
from fleet_kit.settings import EnvSettings, SettingsError

_PROGRAM = "pyoco-fleet-secrets"
_COMPONENT = "secrets"
_SECRET_BYTES = 32
# Workers that were granted access one by one; the operator hands their seeds out.
_GRANTS = "operator/workers"
# The last value of PYOCO_HTTP_AUTH_MODE that was given.
_AUTH_MODE = "operator/http_auth_mode"
# The NATS servers of compose.cluster.yaml.
CLUSTER = ("nats", "nats-2", "nats-3")

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


class Names(EnvSettings, WireNames):
    """The names of subjects and buckets, which the permissions contain."""


class Secrets:
    """Writes the files that are missing, and leaves the others as they are."""

    def __init__(self, folder: Path, *, owner: int | None) -> None:
        self._folder = folder
        self._owner = owner

    def share(self, *places: str) -> str:
        """Write the same random secret to all these places; return it."""
        files = [self._folder / place for place in places]
        known = next((file for file in files if file.exists()), None)
        text = read_secret(known, setting="a secret") if known else secrets.token_urlsafe(_SECRET_BYTES)
        for file in files:
            if not file.exists():
                write_secret(file, text)
            self._hand_over(file)
        return text

    def user(self, place: str) -> str:
        """The public key of the NATS user of that seed file, which is made if missing."""
        file = self._folder / place
        nkey = read_nkey(file, setting="a NATS user") if file.exists() else make_nkey(file)
        self._hand_over(file)
        return nkey.public_key

    def keep(self, place: str, text: str) -> None:
        """Write a file derived from other secrets, again each time. It stays with our user: NATS runs as root."""
        file = self._folder / place
        write_secret(file, text.rstrip("\n"))
        file.chmod(0o400)

    def publish(self, place: str, text: str) -> None:
        """Write a file that is not secret and that every user may read."""
        file = self._folder / place
        write_secret(file, text.rstrip("\n"))
        file.chmod(0o644)
        file.parent.chmod(0o755)

    def remember_auth(self, mode: str) -> None:
        """Remember the mode. Only `none` switches authentication off; an empty mode was not given."""
        file = self._folder / _AUTH_MODE
        before = file.read_text().strip() if file.exists() else ""
        if mode not in ("", "none", "api_key"):
            raise ValueError(f"PYOCO_HTTP_AUTH_MODE is {mode}; set it to api_key or none")
        if not mode and before == "api_key":
            raise ValueError(
                "this fleet asked for API keys when it was started last; set PYOCO_HTTP_AUTH_MODE to api_key again, "
                "or to none to let in everybody who reaches it"
            )
        if mode:
            self.keep(_AUTH_MODE, mode)

    def granted(self) -> dict[str, str]:
        """The granted workers, each with its tags."""
        return {file.stem: file.read_text().strip() for file in sorted((self._folder / _GRANTS).glob("*.tags"))}

    def grant(self, worker_id: str, tags: list[str]) -> None:
        file = self._folder / _GRANTS / f"{worker_id}.tags"
        write_secret(file, ",".join(tags))
        self._hand_over(file)

    def revoke(self, worker_id: str) -> None:
        """Remove the seed, too: a later grant of the same name is another NATS user."""
        if worker_id not in self.granted():
            raise ValueError(f"no worker {worker_id} was granted anything; granted are {sorted(self.granted())}")
        for ending in ("tags", "nk"):
            (self._folder / _GRANTS / f"{worker_id}.{ending}").unlink(missing_ok=True)

    def _hand_over(self, file: Path) -> None:
        file.chmod(0o400)
        if self._owner is not None:
            os.chown(file, self._owner, self._owner)
            os.chown(file.parent, self._owner, self._owner)


def make_all(made: Secrets, *, names: WireNames, workers: int, tags: list[str]) -> None:
    """Make a folder per container, each with the secrets of that container only."""
    services = ("runs-api", "workers-api", "wheels-api", "auth")
    made.share("gateway/gateway.secret", *(f"{service}/gateway.secret" for service in services))
    made.share("postgres/password", "runs-api/postgres.password")
    made.share("auth/pepper")
    roles = [NatsUser(role, made.user(f"{role}/nats.nk"), may(names)) for role, may in SERVICE_ROLES.items()]
    crew = [
        NatsUser(worker_id, made.user(f"workers/{worker_id}.nk"), worker(names, worker_id, tags))
        for worker_id in _worker_ids(workers)
    ]
    crew += [
        NatsUser(worker_id, made.user(f"{_GRANTS}/{worker_id}.nk"), worker(names, worker_id, _tags(granted)))
        for worker_id, granted in made.granted().items()
    ]
    made.keep("nats/cluster.conf", cluster_config(made.share("nats/cluster.password"), CLUSTER))
    made.publish("nats/users.conf", accounts_config(roles, crew))


@app.command()
def make(
    out: Annotated[Path, typer.Option(help="Where the folders go.")],
    workers: Annotated[int, typer.Option(min=0, max=1000, help="How many workers there may be at once.")] = 16,
    tags: Annotated[str, typer.Option(help="Which jobs those workers may take, e.g. cpu,gpu.")] = "default",
    auth: Annotated[
        str, typer.Option(help="Whether callers need API keys: api_key or none; empty: not said.", metavar="MODE")
    ] = "",
    owner: Annotated[int | None, typer.Option(help="Numeric user that the containers run as.")] = None,
    grant: Annotated[
        list[str] | None, typer.Option(help="Let one more worker in, e.g. far=gpu,default.", metavar="NAME=TAGS")
    ] = None,
    revoke: Annotated[list[str] | None, typer.Option(help="Take that back.", metavar="NAME")] = None,
) -> None:
    """Make the secrets of a fleet in containers. A repeated call changes only what its options change."""
    names, wanted = Names.load(), _tags(tags)
    made = Secrets(out, owner=owner)
    made.remember_auth(auth)
    for worker_id in revoke or []:
        made.revoke(worker_id)
    for worker_id, _, its_tags in (wanted.partition("=") for wanted in grant or []):
        if worker_id in _worker_ids(workers):
            raise ValueError(f"{worker_id} is one of the fleet's own workers; choose another name")
        worker(names, worker_id, _tags(its_tags))  # refuses bad names before anything is written
        made.grant(worker_id, _tags(its_tags))
    make_all(made, names=names, workers=workers, tags=wanted)
    _say(f"the secrets of the services and of {workers} workers for {', '.join(wanted)} are in {out}")
    for worker_id, its_tags in made.granted().items():
        _say(f"worker {worker_id} may take jobs of {its_tags}; its seed is {out / _GRANTS / worker_id}.nk")


def _worker_ids(workers: int) -> list[str]:
    return [f"worker-{number}" for number in range(1, workers + 1)]


def _tags(text: str) -> list[str]:
    """The tags without duplicates: a suggested command for one more tag may repeat an existing one."""
    return list(dict.fromkeys(split_tags(text)))


def main() -> None:
    try:
        code = app(standalone_mode=False)
    except typer.TyperException as error:
        code = _fail(error.format_message())
    except (SecretFileError, SettingsError, ValueError) as error:
        code = _fail(str(error))
    except OSError as error:
        code = _fail(f"{error.filename}: {error.strerror}")
    sys.exit(code)


def _say(sentence: str) -> None:
    say(sentence, service=SERVICE_HTTP, component=_COMPONENT)


def _fail(sentence: str) -> int:
    say_failure(sentence, program=_PROGRAM, service=SERVICE_HTTP, component=_COMPONENT)
    return 1
