"""Keeps the auth mode and the ledger of the last start, so that a later one cannot drop them unnoticed."""

from pathlib import Path
from urllib.parse import parse_qsl, urlencode, urlsplit

from pydantic import BaseModel, ValidationError

from fleet_kit.files.secrets import write_secret
from fleet_kit.settings import is_loopback

from ..errors import LaunchError
from ..settings import AuthMode, LauncherSettings
from .folder import DataFolder

# The query parameters of a database URL that identify the database.
_NAMING_PARAMETERS = {"host", "port", "dbname"}


class LastStart(BaseModel):
    http_auth_mode: AuthMode
    # The database URL without user and password. None: the SQLite file in the data dir, which may be moved.
    ledger: str | None

    @classmethod
    def of(cls, folder: DataFolder, settings: LauncherSettings) -> "LastStart":
        return cls(http_auth_mode=settings.http_auth_mode, ledger=_ledger(folder, settings.runs_database_url))


def check_start(folder: DataFolder, settings: LauncherSettings) -> list[str]:
    """Refuse a start that drops the API keys or the ledger of the last one; describe changes that are intended."""
    before, now = _read(folder), LastStart.of(folder, settings)
    auth_is_said = "http_auth_mode" in settings.model_fields_set
    changes = []
    if before is None and not auth_is_said and folder.has_kept(settings.auth_kv_bucket):
        # Last started by a version that did not keep this file.
        raise LaunchError(
            f"the stack in {folder.path} has had API keys, and there is no record of whether it asked for them "
            "when it was started last; say --auth api_key, or --auth none to let in everybody who reaches it"
        )
    if before is not None and before.http_auth_mode != now.http_auth_mode:
        if not auth_is_said:
            raise LaunchError(
                f"the stack in {folder.path} asked for API keys when it was started last; repeat --auth api_key, "
                "or say --auth none to let in everybody who reaches it"
            )
        changes.append(
            "callers need an API key from now on (--auth api_key); at the last start they needed none"
            if now.http_auth_mode == "api_key"
            else "callers need no API key any more (--auth none); at the last start they needed one"
        )
    if not auth_is_said and not is_loopback(settings.host):
        raise LaunchError(
            f"other machines can reach a gateway on {settings.host}, and none of them would need a key; "
            "add --auth api_key, or say --auth none to let in everybody who reaches it"
        )
    if before is not None and before.ledger != now.ledger:
        own = f"sqlite:///{folder.runs_database}"
        if settings.runs_database_url is None:
            raise LaunchError(
                f"the ledger of the stack in {folder.path} is {before.ledger}; set PYOCO_RUNS_DATABASE_URL to it "
                f"again, or to {own} to go on with the ledger in the data dir, which does not know its runs"
            )
        changes.append(
            f"the ledger is now {now.ledger or own}; runs stay behind in {before.ledger or own}, the one before"
        )
    return changes


def remember_start(folder: DataFolder, settings: LauncherSettings) -> None:
    write_secret(folder.last_start, LastStart.of(folder, settings).model_dump_json())


def _read(folder: DataFolder) -> LastStart | None:
    try:
        return LastStart.model_validate_json(folder.last_start.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except ValidationError as error:
        raise LaunchError(
            f"{folder.last_start} is damaged; remove it, and give --auth and PYOCO_RUNS_DATABASE_URL as they were"
        ) from error


def _ledger(folder: DataFolder, url: str | None) -> str | None:
    """The database URL without credentials; None for the SQLite file in the data dir."""
    if url is None:
        return None
    if url.startswith("sqlite:///"):
        file = Path(url.removeprefix("sqlite:///")).absolute()
        return None if file == folder.runs_database else f"sqlite:///{file}"
    parts = urlsplit(url)
    naming = [(name, value) for name, value in parse_qsl(parts.query) if name in _NAMING_PARAMETERS]
    shown = parts._replace(
        scheme=parts.scheme.partition("+")[0],
        netloc=parts.netloc.rpartition("@")[2],
        query=urlencode(naming, safe="/"),
    )
    return shown.geturl()
