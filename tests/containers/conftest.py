"""The fleet in containers; without a container engine these tests say so and are left out."""

from collections.abc import Iterator

import pytest

from fleet_testkit.containers.compose import IMAGES_TAG, ComposedFleet, why_no_engine


@pytest.fixture(scope="session")
def engine() -> None:
    if (reason := why_no_engine()) is not None:
        pytest.skip(reason)


@pytest.fixture(scope="session")
def composed(engine: None) -> Iterator[ComposedFleet]:
    """As compose.yaml says it, and no more."""
    with ComposedFleet(f"{IMAGES_TAG}-compose") as fleet:
        yield fleet
