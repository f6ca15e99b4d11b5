"""Masks secrets in log lines and spans, as a second line of defence."""

import re

# `pyoco_<key id>_<secret>`; the key id is not secret.
_API_KEY = re.compile(r"(pyoco_[A-Za-z0-9-]{1,64}_)[A-Za-z0-9_-]{32,128}")
# A character of a key that is percent-encoded, once or several times, although it need not be.
_NEEDLESS_ESCAPE = re.compile(r"%(?:25)*(2D|3[0-9]|4[1-9A-F]|5[0-9AF]|6[1-9A-F]|7[0-9A])", re.IGNORECASE)
_NKEY_SEED = re.compile(r"S[ACNOUX][A-Z2-7]{56}")
_PASSWORD_IN_URL = re.compile(r"(://[^/@\s:\"]*:)[^/@\s\"]+@")
# How pydantic and SQLAlchemy quote their input. A bracket ends the value only where no `input_type` follows: the
# value may contain brackets.
_INPUT_VALUE = re.compile(r"input_value=(?:.*?(?=, input_type=)|.*?(?=\]|\\n|\n|$))")
_PARAMETERS = re.compile(r"\[parameters: .*?\](?=\\n|\n|\"|$)")
_INSTEAD = "(withheld)"


def without_secrets(line: str) -> str:
    """Mask the secrets of a line, JSON or text. Most lines have none and cost a few substring searches only."""
    if "%" in line and _API_KEY.search(plain := _without_needless_escapes(line)):
        line = plain
    if "pyoco_" in line:
        line = _API_KEY.sub(rf"\1{_INSTEAD}", line)
    if "://" in line:
        line = _PASSWORD_IN_URL.sub(rf"\1{_INSTEAD}@", line)
    if "input_value=" in line:
        line = _INPUT_VALUE.sub(f"input_value={_INSTEAD}", line)
    if "[parameters: " in line:
        line = _PARAMETERS.sub(f"[parameters: {_INSTEAD}]", line)
    return _NKEY_SEED.sub(_INSTEAD, line)


def _without_needless_escapes(line: str) -> str:
    """Decoded until nothing changes: the digits of an escape may be escaped, too (`%25%37%30` for `%70`)."""
    while (plain := _NEEDLESS_ESCAPE.sub(lambda found: chr(int(found[1], 16)), line)) != line:
        line = plain
    return line
