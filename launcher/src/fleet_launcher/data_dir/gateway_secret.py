"""The secret that authenticates the gateway to the services: set by the operator, or made once and kept."""

import secrets
from dataclasses import dataclass
from pathlib import Path

from pydantic import SecretStr

from fleet_kit.files.secrets import SecretFileError, read_secret, write_secret

from ..errors import LaunchError
from ..settings import LauncherSettings
from .folder import DataFolder


@dataclass(frozen=True, slots=True)
class GatewaySecret:
    value: SecretStr
    # Set if the stack made the secret. The services read one of the operator from the same setting as we do.
    file: Path | None = None

    @property
    def env(self) -> dict[str, str]:
        """A service's variables: the file's path, not the secret: this user's processes can read an environment."""
        return {"PYOCO_GATEWAY_SECRET_FILE": str(self.file)} if self.file is not None else {}


def gateway_secret(folder: DataFolder, settings: LauncherSettings) -> GatewaySecret:
    if settings.gateway_secret is not None:
        return GatewaySecret(settings.gateway_secret)
    file = folder.credentials / "gateway.secret"
    if not file.exists():
        write_secret(file, secrets.token_urlsafe(32))
    try:
        return GatewaySecret(SecretStr(read_secret(file, setting="the secret of the gateway")), file)
    except SecretFileError as error:
        raise LaunchError(f"{error}; or remove the file, and the next start makes another") from error
