"""Moments in queries."""

import pytest
from pydantic import TypeAdapter, ValidationError

from fleet_kit.http.query_parameters import Moment

MOMENT: TypeAdapter[float] = TypeAdapter(Moment)


@pytest.mark.parametrize("text", ["1769817600", "1769817600.0", "2026-01-31", "20260131T000000Z"])
def test_a_moment_is_unix_seconds_or_a_time(text: str) -> None:
    assert MOMENT.validate_python(text) == 1769817600


def test_a_date_without_hyphens_is_not_taken_for_unix_seconds() -> None:
    with pytest.raises(ValidationError, match="Input should be a date such as 2026-01-31"):
        MOMENT.validate_python("20260131")
    assert MOMENT.validate_python("20260131.0") == 20260131
