"""Reads the file of variables for flows: a KEY=VALUE on each line, as in .env files."""

import re
from pathlib import Path

_MOST_BYTES = 1024 * 1024
_LINE = re.compile(r"(?:export\s+)?([A-Za-z_]\w*)\s*=\s*(.*)", re.ASCII)
_QUOTED = re.compile(r"""(['"])(.*)\1\s*(?:\#.*)?""")
_COMMENT = re.compile(r"(^|\s+)#.*")
_OF_THE_FLEET = "PYOCO_"


class EnvFileUnusable(Exception):
    """The variables cannot be read; the message says which line to mend, but quotes no value."""


def read_env_file(file: Path) -> dict[str, str]:
    try:
        with file.open("rb") as source:
            data = source.read(_MOST_BYTES + 1)
        text = data.decode()
    except OSError as error:
        raise EnvFileUnusable(f"PYOCO_FLOW_ENV_FILE={file} cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise EnvFileUnusable(f"PYOCO_FLOW_ENV_FILE={file} is not UTF-8 text") from error
    if len(data) > _MOST_BYTES:
        raise EnvFileUnusable(f"PYOCO_FLOW_ENV_FILE={file} is larger than {_MOST_BYTES} bytes")
    found = {}
    for number, line in enumerate(text.splitlines(), start=1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        if (parts := _LINE.fullmatch(line)) is None or (value := _value(parts[2])) is None:
            raise EnvFileUnusable(f"{file}, line {number}: this is not KEY=VALUE")
        if parts[1].startswith(_OF_THE_FLEET):
            raise EnvFileUnusable(
                f"{file}, line {number}: {parts[1]} is a setting of the fleet, which flows are not given; "
                "choose another name"
            )
        found[parts[1]] = value
    return found


def _value(text: str) -> str | None:
    """The value without quotes, or without a comment if there are none; None if it cannot be one."""
    if text[:1] in ("'", '"'):
        quoted = _QUOTED.fullmatch(text)
        return None if quoted is None else quoted[2]
    value = _COMMENT.sub("", text)
    return None if "\0" in value else value
