"""What the command says exists in both languages, is used, and names problems as the specification does."""

import ast
import re
import string
from pathlib import Path

import pytest

from fleet_contracts.problems import Problem
from pyoco_fleet.cli import texts
from pyoco_fleet.cli.texts import en, ja

SOURCES = sorted(path for path in Path(texts.__file__).parents[1].rglob("*.py") if path.parent.name != "texts")


def _keys_in_use() -> set[str]:
    """Patterns of the keys that the code asks for; a part that is only known when it runs matches anything."""
    found = {"language"}
    for source in SOURCES:
        for node in ast.walk(ast.parse(source.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "t":
                found |= {pattern for key in _constants(node.args[0]) if (pattern := _pattern(key))}
            # Keys that are chosen first and looked up later.
            elif isinstance(node, ast.Constant) and str(node.value).startswith(("usage.", "error.", "why.")):
                found.add(re.escape(str(node.value)))
    return found


def _constants(key: ast.AST) -> list[ast.AST]:
    """Texts in an expression; one with places in it as a whole."""
    if isinstance(key, ast.Constant | ast.JoinedStr):
        return [key]
    return [found for child in ast.iter_child_nodes(key) for found in _constants(child)]


def _pattern(key: ast.AST) -> str | None:
    if isinstance(key, ast.JoinedStr):
        parts = (re.escape(str(part.value)) if isinstance(part, ast.Constant) else ".+" for part in key.values)
        return "".join(parts)
    return re.escape(str(key.value)) if isinstance(key, ast.Constant) and "." in str(key.value) else None


def test_every_text_exists_in_both_languages_with_the_same_places() -> None:
    assert list(en.TEXTS) == list(ja.TEXTS)
    for key, text in en.TEXTS.items():
        assert _places(text) == _places(ja.TEXTS[key]), key


def _places(text: str) -> set[str]:
    return {name for _, name, _, _ in string.Formatter().parse(text) if name}


def test_every_text_is_used_and_every_text_that_is_used_exists() -> None:
    patterns = [re.compile(pattern) for pattern in _keys_in_use()]
    unused = [key for key in en.TEXTS if not any(pattern.fullmatch(key) for pattern in patterns)]
    missing = [pattern.pattern for pattern in patterns if not any(pattern.fullmatch(key) for key in en.TEXTS)]
    assert (unused, missing) == ([], [])


def test_problems_are_called_what_the_specification_calls_them() -> None:
    assert {problem.err_id: problem.message_ja for problem in Problem} == ja.PROBLEMS
    assert {problem.err_id: problem.message for problem in Problem} == en.PROBLEMS


@pytest.mark.parametrize(
    ("argv", "env", "language"),
    [
        ([], {}, "en"),
        ([], {"LANG": "ja_JP.UTF-8"}, "ja"),
        ([], {"LANG": "ja_JP.UTF-8", "LC_ALL": "C"}, "en"),
        (["list", "--lang", "ja"], {}, "ja"),
        (["--lang=en"], {"LANG": "ja_JP.UTF-8"}, "en"),
    ],
)
def test_the_language_is_the_one_asked_for_else_that_of_the_environment(
    argv: list[str], env: dict[str, str], language: str
) -> None:
    assert texts.choose(argv, env) == language
