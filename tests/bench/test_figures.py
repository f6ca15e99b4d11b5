"""Ratios mean what they say, and figures are shown as wanted."""

import json
from pathlib import Path

import pytest
from bench.figures import Figure
from bench.measures import GROUPS
from bench.report import document, missed_limits, number, table


@pytest.mark.parametrize(
    ("unit", "ours", "peer", "ratio"),
    [
        ("per s", 3000.0, 1000.0, 3.0),
        ("%", 98.0, 49.0, 2.0),
        ("ms", 5.0, 10.0, 2.0),
        ("s", 40.0, 10.0, 0.25),
        ("MiB", 200.0, 100.0, 0.5),
        ("writes", 3.0, 6.0, 2.0),
    ],
)
def test_a_ratio_above_one_means_that_ours_is_better(unit: str, ours: float, peer: float, ratio: float) -> None:
    assert Figure("x", unit, ours, peer).ratio == ratio


@pytest.mark.parametrize("peer", [None, 0.0])
def test_without_a_figure_of_the_peer_there_is_no_ratio(peer: float | None) -> None:
    assert Figure("x", "ms", 1.0, peer).ratio is None


def test_the_document_has_these_five_fields_and_four_digits() -> None:
    figures = [Figure("submit", "per s", 1234.567, 1000.0), Figure("list", "ms", 2.5, None)]
    assert json.loads(document(figures)) == [
        {"name": "submit", "unit": "per s", "ours": 1235.0, "peer": 1000.0, "ratio": 1.235},
        {"name": "list", "unit": "ms", "ours": 2.5, "peer": None, "ratio": None},
    ]


def test_the_table_aligns_its_columns_and_marks_what_is_missing() -> None:
    lines = table([Figure("submit", "per s", 1234.5, 617.25), Figure("list", "ms", 2.5, None)]).splitlines()
    assert len({len(line) for line in lines}) == 1
    assert lines[1].split() == ["submit", "per", "s", "1,234", "617", "2.00×"]
    assert lines[2].split() == ["list", "ms", "2.50", "–", "–"]


def test_a_figure_that_is_not_under_its_limit_is_said_to_have_failed() -> None:
    within, over = Figure("p99", "ms", 99.9, None, limit=100.0), Figure("p99", "ms", 130.2, None, limit=100.0)
    assert missed_limits([within, Figure("max", "ms", 500.0, None)]) == []
    assert missed_limits([within, over]) == ["FAILED: p99 is 130 ms, and must stay under 100"]


@pytest.mark.parametrize(("value", "shown"), [(12345.6, "12,346"), (12.34, "12.3"), (0.123, "0.12"), (None, "–")])
def test_a_number_has_as_many_decimals_as_it_is_worth(value: float | None, shown: str) -> None:
    assert number(value) == shown


def test_the_readme_describes_every_group() -> None:
    readme = (Path(__file__).parents[2] / "bench" / "README.md").read_text()
    assert [name for name in GROUPS if f"\n| `{name}` |" not in readme] == []
