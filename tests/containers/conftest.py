"""The fleet in containers; without a container engine these tests say so and are left out."""

from collections.abc import Iterator

import pytest

from fleet_testkit.compose import ComposedFleet, why_no_engine


@pytest.fixture(scope="session")
def composed() -> Iterator[ComposedFleet]:
    if (reason := why_no_engine()) is not None:
        pytest.skip(reason)
    with ComposedFleet("pyoco-fleet-test") as fleet:
        yield fleet
