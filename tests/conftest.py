"""What acceptance and chaos tests share: one stack that nobody breaks, and flows with visible effects."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from fleet_testkit.stack import Stack
from fleet_testkit.wire import Wire


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """The stack of a newcomer: all defaults, the example flows. A test that kills its parts starts its own."""
    with Stack(tmp_path_factory.mktemp("stack") / "data") as stack:
        yield stack


@pytest.fixture(scope="session")
def wire(stack: Stack) -> Wire:
    """The NATS of the shared stack."""
    return Wire(stack.nats_url)


@pytest.fixture(scope="session")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A stack that wants API keys, without a worker. Tests keep apart by their tenants."""
    with Stack(tmp_path_factory.mktemp("guarded") / "data", "--auth", "api_key", with_worker=False) as stack:
        yield stack


@pytest.fixture(scope="session")
def flows_dir() -> Path:
    return Path(__file__).parent / "flows"


@pytest.fixture
def marks(tmp_path: Path) -> Path:
    """Where executions leave their marks, one line each."""
    file = tmp_path / "marks"
    file.touch()
    return file
