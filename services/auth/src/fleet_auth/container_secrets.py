"""The command `pyoco-fleet-secrets`: every secret of a fleet in containers, made once, in a folder for each."""

import os
import secrets
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from fleet_contracts.names import WireNames
from fleet_contracts.nats_roles import SERVICE_ROLES, NatsUser, accounts_config, worker
from fleet_kit.nkey_files import make_nkey, read_nkey
from fleet_kit.secret_files import SecretFileError, read_secret, write_secret

_PROGRAM = "pyoco-fleet-secrets"
_SECRET_BYTES = 32

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


class Secrets:
    """What is there stays as it is; what is missing is made."""

    def __init__(self, folder: Path, *, owner: int | None) -> None:
        self._folder = folder
        self._owner = owner

    def share(self, *places: str) -> None:
        """One random text, known in all these places."""
        known = [file for file in self._files(places) if file.exists()]
        text = read_secret(known[0], setting="a secret") if known else secrets.token_urlsafe(_SECRET_BYTES)
        for file in self._files(places):
            if not file.exists():
                write_secret(file, text)
            self._hand_over(file)

    def user(self, place: str) -> str:
        """The public key of a NATS user whose seed is there."""
        file = self._folder / place
        nkey = read_nkey(file, setting="a NATS user") if file.exists() else make_nkey(file)
        self._hand_over(file)
        return nkey.public_key

    def publish(self, place: str, text: str) -> None:
        """Nothing secret: anybody may read it."""
        file = self._folder / place
        write_secret(file, text.rstrip("\n"))
        file.chmod(0o644)
        file.parent.chmod(0o755)

    def _files(self, places: tuple[str, ...]) -> Iterator[Path]:
        return (self._folder / place for place in places)

    def _hand_over(self, file: Path) -> None:
        file.chmod(0o400)
        if self._owner is not None:
            os.chown(file, self._owner, self._owner)
            os.chown(file.parent, self._owner, self._owner)


def make_all(folder: Path, *, names: WireNames, workers: int, tags: list[str], owner: int | None) -> None:
    """A folder per container; none of them holds what another one needs alone."""
    made = Secrets(folder, owner=owner)
    services = ("runs-api", "workers-api", "wheels-api", "auth")
    made.share("gateway/gateway.secret", *(f"{service}/gateway.secret" for service in services))
    made.share("postgres/password", "runs-api/postgres.password")
    made.share("auth/pepper")
    roles = [NatsUser(role, made.user(f"{role}/nats.nk"), may(names)) for role, may in SERVICE_ROLES.items()]
    crew = [
        NatsUser(worker_id, made.user(f"workers/{worker_id}.nk"), worker(names, worker_id, tags))
        for worker_id in (f"worker-{number}" for number in range(1, workers + 1))
    ]
    made.publish("nats/users.conf", accounts_config(roles, crew))


@app.command()
def make(
    out: Annotated[Path, typer.Option(help="Where the folders go.")],
    workers: Annotated[int, typer.Option(min=0, max=1000, help="How many workers there may be at once.")] = 16,
    tags: Annotated[str, typer.Option(help="Which jobs those workers may take, e.g. cpu,gpu.")] = "default",
    owner: Annotated[int | None, typer.Option(help="Numeric user that the containers run as.")] = None,
) -> None:
    """Make the secrets of a fleet in containers. Once more changes nothing but what was asked for anew."""
    wanted = [tag.strip() for tag in tags.split(",") if tag.strip()]
    make_all(out, names=WireNames(), workers=workers, tags=wanted, owner=owner)
    typer.echo(f"the secrets of the services and of {workers} workers for {', '.join(wanted)} are in {out}")


def main() -> None:
    try:
        code = app(standalone_mode=False)
    except typer.TyperException as error:
        code = _fail(error.format_message())
    except (SecretFileError, ValueError) as error:
        code = _fail(str(error))
    except OSError as error:
        code = _fail(f"{error.filename}: {error.strerror}")
    sys.exit(code)


def _fail(sentence: str) -> int:
    sys.stderr.write(f"{_PROGRAM}: {sentence}\n")
    return 1


if __name__ == "__main__":
    main()
