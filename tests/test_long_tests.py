"""The order of tests that run side by side."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest

from fleet_testkit.long_tests import long_first


@dataclass(frozen=True)
class Item:
    file: str
    number: int
    long: bool

    @property
    def path(self) -> Path:
        return Path(self.file)

    def get_closest_marker(self, name: str) -> str | None:
        return name if self.long else None


def in_order(items: list[Item], processes: int) -> list[Item]:
    return cast(list[Item], long_first(cast(Any, items), processes))


def test_each_process_begins_with_long_files_of_its_own_and_keeps_them_whole() -> None:
    short = [Item("short", number, False) for number in range(13)]
    long = [Item(file, number, True) for file in ("a", "b", "c") for number in range(2)]

    ordered = in_order([*short, *long], 2)

    # xdist gives the first process nine of nineteen tests.
    assert [item.file for item in ordered[:9]] == ["a"] * 2 + ["c"] * 2 + ["short"] * 5
    assert [item.file for item in ordered[9:]] == ["b"] * 2 + ["short"] * 8
    assert [item for item in ordered if not item.long] == short


@pytest.mark.parametrize("processes", [1, 3, 8])
def test_every_test_is_run_once_even_if_most_are_long(processes: int) -> None:
    items = [Item(str(number // 5), number, number % 4 > 0) for number in range(23)]

    ordered = in_order(items, processes)

    assert sorted(ordered, key=lambda item: item.number) == items
