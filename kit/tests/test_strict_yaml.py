"""Untrusted YAML: plain values with their lines, and a sentence for everything else."""

import pytest

from fleet_kit.files.strict_yaml import BadYaml, read_yaml, shown_path

TEXT = """\
# a comment
name: "a b"
when: 2024-01-01
list:
  - 1
  - {x: 0x10, y: [true, null, 1.5, 12e03]}
text: |

  first
  second
"""


def test_plain_values_are_read_and_a_date_stays_text() -> None:
    assert read_yaml(TEXT).value == {
        "name": "a b",
        "when": "2024-01-01",
        "list": [1, {"x": 16, "y": [True, None, 1.5, "12e03"]}],
        "text": "\nfirst\nsecond\n",
    }
    assert read_yaml("\ufeffa: 1").value == {"a": 1}


def test_every_value_has_its_line() -> None:
    document = read_yaml(TEXT)
    assert [document.line_of(path) for path in [(), ("when",), ("list",), ("list", 1), ("list", 1, "y", 2)]] == [
        2,
        3,
        4,
        6,
        6,
    ]
    assert document.line_of(("list", 7, "z")) == 4
    assert document.line_of(("nowhere",)) == 2
    assert document.line_in_text(("text",), document.value["text"].index("second")) == 10
    assert document.line_in_text(("name",), 2) == 2


def test_a_path_is_shown_as_one_would_write_it() -> None:
    assert shown_path(("tasks", "a", "outputs", 0)) == "tasks.a.outputs[0]"
    assert shown_path(("k" * 100,)) == "k" * 60 + "…"


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        ("a: 1\nb: &x 1", 2, 'anchors such as "&x" are not allowed'),
        ("a: *x", 1, 'aliases such as "*x" are not allowed'),
        ("a: !!python/object:os.system x", 1, 'tags such as "tag:yaml.org,2002:python/object:os.system"'),
        ("a: ! x", 1, 'tags such as "!" are not allowed'),
        ("a: 1\n---\nb: 2", 2, "there is more than one document"),
        ("a: 1\nb: 2\na: 3", 3, 'the key "a" occurs twice'),
        ("a:\n  b: {c: 1, c: 2}", 2, 'the key "c" occurs twice in a.b'),
        ("a:\n  on: 1", 2, 'the key "on" is no text in a; put it in quotes'),
        ("1: 2", 1, 'the key "1" is no text'),
        ("<<: {a: 1}", 1, 'the key "<<" is no text'),
        ("? [a]\n: 1", 1, "the key is no text"),
        ("a: .inf", 1, '".inf" in a is not a usable number'),
        ("a: 0b" + "1" * 200, 1, "is not a usable number"),
        ("[" * 33 + "]" * 33, 1, "nested deeper than 32 levels"),
        ("a: \x85x", 1, "the character U+0085 is not allowed"),
        ('x: {"a\\x9b31m": 1}', 1, 'the character U+009B is not allowed in the key "a\\x9b31m" in x'),
        ('a: 1\n"b\\n": 1', 2, 'the character U+000A is not allowed in the key "b\\x0a"'),
        ("a: 1\nb: \x1b[0m", 2, "the character U+001B is not allowed"),
        ("a: [1\n\n", 1, "did not find expected"),
        ("a: b: c", 1, "mapping values are not allowed"),
        ('a: "\\ud800"', 1, "invalid Unicode character"),
        ("", 1, "the document is empty"),
        ("%YAML 3.0\n--- a", 1, "incompatible YAML document"),
    ],
)
def test_what_is_not_plain_is_refused_with_its_line(text: str, line: int, reason: str) -> None:
    with pytest.raises(BadYaml) as caught:
        read_yaml(text)
    assert reason in str(caught.value)
    assert caught.value.line == line
