"""The pepper of the keys, from the environment or from a file."""

from pathlib import Path
from typing import Self

from pydantic import BaseModel, SecretStr, model_validator

from fleet_kit.files.secrets import read_secret


class Pepper(BaseModel):
    """The pepper setting; settings classes inherit it."""

    # Mixed into the hash of every key: keys cannot be tried against the bucket alone.
    auth_pepper: SecretStr | None = None
    # The same, read from a file that other users cannot access.
    auth_pepper_file: Path | None = None

    @model_validator(mode="after")
    def _read_pepper(self) -> Self:
        if self.auth_pepper_file is not None:
            if self.auth_pepper is not None:
                raise ValueError("PYOCO_AUTH_PEPPER and PYOCO_AUTH_PEPPER_FILE are both set; unset one of them")
            self.auth_pepper = SecretStr(read_secret(self.auth_pepper_file, setting="PYOCO_AUTH_PEPPER_FILE"))
        return self
