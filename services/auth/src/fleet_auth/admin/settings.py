"""Finds NATS for the admin command: by option, environment, or the data dir of the embedded stack."""

from pathlib import Path
from typing import Any, Self

from fleet_kit.settings import SettingsError

from ..settings import KeySettings


class AdminSettings(KeySettings):
    data_dir: Path = Path(".fleet")

    @classmethod
    def find(cls, nats_url: str | None, data_dir: Path | None, nkey_file: Path | None, *, role: str = "auth") -> Self:
        """The command line takes precedence, then the environment, then the stack of the data dir."""
        given: dict[str, Any] = {"nats_url": nats_url, "data_dir": data_dir, "nats_nkey_file": nkey_file}
        settings = cls.load(**given)
        if nats_url is not None or (data_dir is None and "nats_url" in settings.model_fields_set):
            return settings
        if (port := _port_in(settings.data_dir)) is not None:
            given["nats_url"] = f"nats://127.0.0.1:{port}"
            seed = settings.data_dir / "credentials" / f"{role}.nk"
            if nkey_file is None and seed.exists():
                given["nats_nkey_file"] = seed
            return cls.load(**given)
        if data_dir is not None:
            raise SettingsError(
                f"{data_dir} is not the data dir of a stack with a NATS of its own; "
                "name another with --data-dir, or give --nats-url"
            )
        return settings


def _port_in(data_dir: Path) -> int | None:
    """The port of the launcher's NATS, from its file in the data dir."""
    try:
        return int((data_dir / "nats.port").read_text())
    except (OSError, ValueError):
        return None
