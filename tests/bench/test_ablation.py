"""An ablation's ratios mean what they say, and its table names the processes that cost most."""

import pytest
from bench.ablation import Series, ratio, table


def series(*values: float, cpu: float) -> Series:
    made = Series()
    for value in values:
        made.add(value, {"runs-api": cpu, "nats": cpu / 2})
    return made


@pytest.mark.parametrize(("measure", "with_", "without"), [("submit 16", 300.0, 200.0), ("e2e", 200.0, 300.0)])
def test_a_ratio_above_one_means_that_the_first_side_is_better(measure: str, with_: float, without: float) -> None:
    assert ratio(measure, series(with_, cpu=1), series(without, cpu=1)) == pytest.approx(1.5)


def test_the_table_has_medians_spreads_and_cpu_seconds() -> None:
    seen = {"submit 16": [series(90, 100, 150, cpu=0.5), series(40, 60, 50, cpu=1.0)]}
    assert table(seen).splitlines()[-1] == (
        "| submit 16, per s | 100 (90 to 150) | 50 (40 to 60) | 2.00 "
        "| 0.75 (runs-api 0.5, nats 0.25) | 1.5 (runs-api 1, nats 0.5) | 2.00 |"
    )
