"""Output: tables for people, what scripts count on in a pipe, and texts that cannot harm a terminal."""

import io
import json
import re
from typing import Any

import pytest

from pyoco_fleet.cli import texts
from pyoco_fleet.cli.commands.lists import run_table
from pyoco_fleet.cli.follow import Lines
from pyoco_fleet.cli.output import Column, Output, Table, printable
from pyoco_fleet.cli.task_table import task_rows


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def english() -> None:
    texts.use("en")


def run(number: int, status: str = "COMPLETED", **more: Any) -> dict[str, Any]:
    return {
        "run_id": f"01a1e30e-8505-75eb-b63d-46700000000{number}",
        "flow_name": "hello",
        "status": status,
        "tag": "default",
        "updated_at": 1794809215.5,
        **more,
    }


def test_a_piped_table_has_the_columns_that_scripts_know() -> None:
    out = Output("table", stdout=io.StringIO())
    out.table(run_table([run(1), run(2, "FAILED", error="no")]))
    assert isinstance(out.stdout, io.StringIO)
    assert out.stdout.getvalue().splitlines() == [
        "run_id                                status     flow_name  tag      updated_at",
        "01a1e30e-8505-75eb-b63d-467000000001  COMPLETED  hello      default  1794809215.5",
        "01a1e30e-8505-75eb-b63d-467000000002  FAILED     hello      default  1794809215.5",
    ]


def test_piped_json_is_one_line_and_on_a_terminal_it_is_indented() -> None:
    piped, shown = Output(stdout=io.StringIO()), Output("json", stdout=Terminal())
    piped.json({"text": "名前"})
    shown.json({"text": "名前"})
    assert piped.form == "json"
    assert piped.stdout.getvalue() == json.dumps({"text": "名前"}) + "\n"  # type: ignore[attr-defined]
    assert shown.stdout.getvalue() == '{\n  "text": "名前"\n}\n'  # type: ignore[attr-defined]


def test_a_terminal_gets_colours_unless_they_are_not_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.delenv("NO_COLOR", raising=False)
    shown = {}
    for colour in (True, False):
        out = Output(colour=colour, stdout=Terminal())
        out.table(run_table([run(1, "FAILED", error="ValueError: no\nmore")]))
        shown[colour] = out.stdout.getvalue()  # type: ignore[attr-defined]
    assert "\x1b[31mFAILED" in shown[True]
    assert "\x1b[31m" not in shown[False]
    # As much of the id as tells it from others, and the error in one line.
    assert "01a1e30e-8505 " in shown[False]
    assert "ValueError: no more" in shown[False]


def test_ids_are_as_long_as_it_takes_to_tell_them_apart() -> None:
    alike, different = [run(1), run(2)], [run(1), run(2) | {"run_id": "7d4b0eee-69c9-497f-8d74-7f4472c87ce4"}]
    shown = [[run_table(runs).columns[0].of(one) for one in runs] for runs in (alike, different)]
    assert shown == [[one["run_id"] for one in alike], ["01a1e30e-8505", "7d4b0eee-69c9"]]


def test_control_characters_do_not_reach_a_terminal_but_colours_do() -> None:
    assert printable("a\x1b]0;title\x07b\x1b[31mred\x1b[0m\x1b[2J\x9b1m\tc\n") == (
        "a�]0;title�b\x1b[31mred\x1b[0m�[2J�1m\tc\n"
    )


def test_pieces_of_output_are_joined_to_lines_that_name_their_task() -> None:
    lines = Lines()
    first = {"task": "a", "stream": "stdout", "attempt": 1, "level": None}
    other = {"task": "b", "stream": "stderr", "attempt": 2, "level": None}
    logged = {**first, "level": "WARNING", "text": "the file is empty\n"}
    assert lines.add({**first, "text": "one\ntw"}) == ["[a] one"]
    assert lines.add({**other, "text": "x\n"}) == ["[b stderr attempt 2] x"]
    assert lines.add({**first, "text": "o\n"}) == ["[a] two"]
    assert lines.add(logged) == ["[a] WARNING the file is empty"]
    lines.add({**first, "text": "rest"})
    assert lines.rest() == ["[a] rest"]


def test_tasks_come_in_the_order_in_which_they_began_and_running_ones_have_a_duration() -> None:
    rows = task_rows(
        {
            "tasks": {"late": "PENDING", "second": "RUNNING", "first": "SUCCEEDED"},
            "task_records": {
                "first": {"started_at": 10.0, "ended_at": 11.5, "duration_ms": 1500.0},
                "second": {"started_at": 11.5},
            },
        },
        now=14.0,
    )
    assert [(row["task"], row["length"]) for row in rows] == [("first", 1.5), ("second", 2.5), ("late", None)]


def lines_of(table: Table) -> list[str]:
    out = Output(colour=False, stdout=Terminal())
    out.table(table)
    assert isinstance(out.stdout, io.StringIO)
    return [re.sub(r"\x1b\[[0-9;]*m", "", line).rstrip() for line in out.stdout.getvalue().splitlines()]


def test_a_row_is_one_line_however_narrow_the_terminal_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    items = [{"name": "etl", "error": "a sentence that is longer than the terminal is wide, and more"}]
    columns = [Column("name", lambda item: item["name"]), Column("error", lambda item: item["error"])]
    _, row = lines_of(Table(items, columns))
    assert row.startswith("etl   a sentence")
    assert row.endswith("…")
    assert len(lines_of(Table(items, columns, wraps=True))) == 3


def test_a_column_without_values_is_not_shown() -> None:
    items = [{"run": "01a1", "workers": 0}]
    columns = [
        Column("run", lambda item: item["run"]),
        Column("version", lambda item: item.get("version")),
        Column("workers", lambda item: item["workers"]),
    ]
    assert lines_of(Table(items, columns)) == ["run   workers", "01a1  0"]


def test_a_long_word_of_a_result_is_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    out = Output(colour=False, stdout=Terminal())
    out.fields([("result", "x" * 100)])
    assert isinstance(out.stdout, io.StringIO)
    assert out.stdout.getvalue().count("x") == 100
