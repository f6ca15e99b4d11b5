"""The secret that authenticates the gateway to the services: set by the operator, or made once and kept."""

import secrets

from pydantic import SecretStr

from fleet_kit.files.secrets import SecretFileError, read_secret, write_secret

from ..errors import LaunchError
from ..settings import LauncherSettings
from .folder import DataFolder


def gateway_secret(folder: DataFolder, settings: LauncherSettings) -> SecretStr:
    if settings.gateway_secret is not None:
        return settings.gateway_secret
    file = folder.gateway_secret
    if not file.exists():
        write_secret(file, secrets.token_urlsafe(32))
    try:
        return SecretStr(read_secret(file, setting="the secret of the gateway"))
    except SecretFileError as error:
        raise LaunchError(f"{error}; or remove the file, and the next start makes another") from error
