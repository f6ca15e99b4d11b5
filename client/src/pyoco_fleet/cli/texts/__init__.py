"""Everything that the command says, in English and Japanese."""

import importlib
import os
from collections.abc import Mapping, Sequence

LANGUAGES = ("en", "ja")

_texts: Mapping[str, str] = {}
_problems: Mapping[str, str] = {}


def use(language: str) -> None:
    """Speak this language from now on."""
    global _texts, _problems
    module = importlib.import_module(f".{language}", __name__)
    _texts, _problems = module.TEXTS, module.PROBLEMS


def t(key: str, **values: object) -> str:
    """The text of this key."""
    if not _texts:
        use("en")
    return _texts[key].format(**values) if values else _texts[key]


def problem(err_id: str | None) -> str | None:
    """What a problem of the catalogue is called (MSG-PYOCO-…)."""
    if not _texts:
        use("en")
    return _problems.get(err_id or "")


def is_english() -> bool:
    return not _texts or _texts["language"] == "en"


def choose(argv: Sequence[str], env: Mapping[str, str] = os.environ) -> str:
    """The language of `--lang`, else of the environment. It is needed before the arguments are parsed."""
    for place, word in enumerate(argv):
        said = argv[place + 1] if word == "--lang" and place + 1 < len(argv) else word.partition("--lang=")[2]
        if said in LANGUAGES:
            return said
    locale = env.get("LC_ALL") or env.get("LC_MESSAGES") or env.get("LANG") or ""
    return "ja" if locale.startswith("ja") else "en"
