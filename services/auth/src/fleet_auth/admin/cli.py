"""The command `pyoco-server-admin`: API keys, directly in NATS so that the first one needs no key; and backups."""

import asyncio
import logging
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

import orjson
import typer
from pydantic import TypeAdapter, ValidationError
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fleet_contracts.problems import Problem
from fleet_contracts.scopes import ALL_SCOPES, Scope
from fleet_kit.errors import FleetError
from fleet_kit.nats.link import NatsLink
from fleet_kit.settings import SettingsError

from ..errors import KeyNotFound
from ..issuing import IssuedKey, KeyRequest
from ..issuing import issue as issue_key
from ..issuing import revoke as revoke_key
from ..keys import Keys
from ..listing import select_keys
from ..records import DEFAULT_SCOPES, KeyName, KeyRecord, KeyState, TenantId, pepper_mark
from ..schemas import KeyView, NewKeyView
from .backup import RestoreRefused
from .backup_cli import backup, restore_backup
from .connecting import PROGRAM, TIMEOUT_SECONDS, DataDir, NatsUrl, connected, say
from .lifetimes import end_of_life, shown
from .settings import AdminSettings

T = TypeVar("T")

_EXAMPLE = f"{PROGRAM} api-key create --tenant acme"
_WIDTH_OF_A_PIPE = 400

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False, no_args_is_help=True)
api_key = typer.Typer(rich_markup_mode=None, no_args_is_help=True, help="Issue, list and revoke API keys.")
app.add_typer(api_key, name="api-key")
app.command("backup")(backup)
app.command("restore")(restore_backup)


@app.callback()
def administer() -> None:
    """Administer a fleet. Works on NATS directly: anyone with its credentials may do this."""


NkeyFile = Annotated[Path | None, typer.Option(help="Seed of the NATS user of auth.", metavar="FILE")]
AsJson = Annotated[bool, typer.Option("--json", help="For machines.")]


@api_key.command()
def create(
    tenant: Annotated[str, typer.Option(help="Whose key it is.", metavar="T")],
    scopes: Annotated[
        str, typer.Option(help=f"What it may do: {', '.join(sorted(ALL_SCOPES))}.", metavar="A,B")
    ] = ",".join(DEFAULT_SCOPES),
    expires: Annotated[str | None, typer.Option(help="30d, 12h or a date; default: never.", metavar="WHEN")] = None,
    name: Annotated[str | None, typer.Option(help="What it is for.", metavar="TEXT")] = None,
    as_json: AsJson = False,
    nats_url: NatsUrl = None,
    data_dir: DataDir = None,
    nkey_file: NkeyFile = None,
) -> None:
    """Issue a key. It is shown this once, on standard output."""
    wanted = _key_request(tenant, scopes, expires, name)
    settings = AdminSettings.find(nats_url, data_dir, nkey_file)

    async def issue(keys: Keys) -> IssuedKey:
        _warn_of_other_peppers(keys)
        return await issue_key(keys, wanted)

    issued = _with_keys(settings, issue)
    if as_json:
        _print_json(NewKeyView.once(issued).model_dump(mode="json"))
        return
    record = issued.record
    say(
        f"key {record.key_id} of tenant {record.tenant_id} for {', '.join(record.scopes)}; "
        f"{'it does not expire' if record.expires_at is None else f'it expires {shown(record.expires_at)}'}"
    )
    say("this is the only time that it is shown:")
    typer.echo(issued.api_key)


@api_key.command("list")
def list_keys(
    tenant: Annotated[str | None, typer.Option(help="Only those of this tenant.", metavar="T")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Revoked ones, too.")] = False,
    as_json: AsJson = False,
    nats_url: NatsUrl = None,
    data_dir: DataDir = None,
    nkey_file: NkeyFile = None,
) -> None:
    """Show the keys, the newest first; never the keys themselves."""

    async def look(keys: Keys) -> list[KeyRecord]:
        return select_keys(keys.all(), tenant_id=tenant, include_revoked=everything)[0]

    records = _with_keys(AdminSettings.find(nats_url, data_dir, nkey_file), look)
    if as_json:
        _print_json([KeyView.of(record).model_dump(mode="json") for record in records])
    elif records:
        # No wrapping in a file or a pipe.
        Console(width=None if sys.stdout.isatty() else _WIDTH_OF_A_PIPE).print(_table(records))
    else:
        say(f"there are no keys; issue one with `{_EXAMPLE}`")


@api_key.command()
def revoke(
    key_id: Annotated[str, typer.Option(help="Which one; see `list`.", metavar="K")],
    as_json: AsJson = False,
    nats_url: NatsUrl = None,
    data_dir: DataDir = None,
    nkey_file: NkeyFile = None,
) -> None:
    """Revoke a key; it is refused within three seconds. Revoking it again changes nothing."""
    settings = AdminSettings.find(nats_url, data_dir, nkey_file)
    record = _with_keys(settings, lambda keys: revoke_key(keys, key_id))
    if as_json:
        _print_json(KeyView.of(record).model_dump(mode="json"))
    else:
        say(f"key {record.key_id} of tenant {record.tenant_id} is revoked since {shown(record.revoked_at)}")


def main() -> None:
    """Run the command; a failure is one sentence and exit code 1, Ctrl-C is 130."""
    # A failed connection is reported below, once and in one sentence.
    logging.disable(logging.CRITICAL)
    try:
        code = app(standalone_mode=False)
    except (SettingsError, typer.TyperException) as error:
        reason = error.format_message() if isinstance(error, typer.TyperException) else str(error)
        code = _fail(f"{reason.rstrip('.')}; example: {_EXAMPLE}", Problem.INVALID_ARGUMENT)
    except KeyNotFound as error:
        code = _fail(f"there is no key {error.meta['key_id']}; see `{PROGRAM} api-key list --all`")
    except RestoreRefused as error:
        code = _fail(str(error))
    except TimeoutError:
        # Before OSError, its base class.
        code = _fail(
            "NATS did not answer in time; try again: a cluster that has lost a server needs some seconds",
            Problem.NATS_UNAVAILABLE,
        )
    except OSError as error:
        code = _fail(f"{error.filename}: {error.strerror}")
    except FleetError as error:
        code = _fail(error.message, error.problem)
    except KeyboardInterrupt:
        code = 130
    sys.exit(code)


def _fail(sentence: str, problem: Problem | None = None) -> int:
    say(sentence + (f" ({problem.err_id})" if problem else ""))
    return 1


def _key_request(tenant: str, scopes: str, expires: str | None, name: str | None) -> KeyRequest:
    _check("--tenant", tenant, TypeAdapter(TenantId))
    _check("--name", name, TypeAdapter(KeyName | None))
    wanted = [word.strip() for word in scopes.split(",") if word.strip()]
    if unknown := sorted(set(wanted) - ALL_SCOPES):
        raise typer.TyperException(
            f"--scopes: {', '.join(unknown)} is not known; known are {', '.join(sorted(ALL_SCOPES))}"
        )
    if not wanted:
        raise typer.TyperException("--scopes names none")
    try:
        expires_at = None if expires is None else end_of_life(expires, now=time.time())
    except ValueError as error:
        raise typer.TyperException(f"--expires {error}") from error
    return KeyRequest(tenant, tuple(Scope(word) for word in wanted), name=name, expires_at=expires_at)


def _check(option: str, text: str | None, kind: TypeAdapter[Any]) -> None:
    try:
        kind.validate_python(text)
    except ValidationError as error:
        reason = error.errors(include_url=False)[0]["msg"].removeprefix("Value error, ")
        raise typer.TyperException(f"{option} {text!r}: {reason}") from error


def _with_keys(settings: AdminSettings, work: Callable[[Keys], Awaitable[T]]) -> T:
    """Run `work` with the keys as auth sees them, over a connection of its own."""

    async def over_nats() -> T:
        link = NatsLink(settings, name=PROGRAM)
        keys = Keys(link, settings, stale_sec=TIMEOUT_SECONDS)
        link.after_connect(keys.load)
        try:
            async with connected(link, settings):
                return await work(keys)
        finally:
            await keys.stop()

    return asyncio.run(over_nats())


def _warn_of_other_peppers(keys: Keys) -> None:
    ours = pepper_mark(keys.pepper)
    if any(record.pepper != ours and record.revoked_at is None for record in keys.all()):
        say(
            "warning: there are keys of another PYOCO_AUTH_PEPPER; this one only opens if auth has the same pepper "
            "as this command"
        )


def _table(records: Sequence[KeyRecord]) -> Table:
    table = Table("key id", "tenant", "name", "scopes", "created", "expires", "state", box=None, pad_edge=False)
    now = time.time()
    for record in records:
        state = record.state_at(now)
        table.add_row(
            record.key_id,
            record.tenant_id,
            escape(record.name or "–"),
            " ".join(record.scopes),
            shown(record.created_at),
            shown(record.expires_at),
            f"[green]{state}[/]" if state is KeyState.ACTIVE else f"[red]{state}[/]",
        )
    return table


def _print_json(value: object) -> None:
    typer.echo(orjson.dumps(value, option=orjson.OPT_INDENT_2).decode())
