"""Fixtures of acceptance and chaos tests: one fleet that nobody breaks, and flows with visible effects.

With `--fleet composed` the acceptance tests have theirs in containers.
"""

import itertools
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from fleet_testkit.containers.compose import IMAGES_TAG
from fleet_testkit.containers.open_fleet import OpenFleet
from fleet_testkit.fleet import Fleet, MakesFleets
from fleet_testkit.stack import Stack
from fleet_testkit.wire import Wire


@pytest.fixture(scope="session")
def is_composed(pytestconfig: pytest.Config) -> bool:
    return bool(pytestconfig.getoption("fleet") == "composed")


@pytest.fixture(scope="session")
def new_fleet(is_composed: bool, shared_folder: Path) -> MakesFleets:
    """Makes a fleet of a test's own, to be used in a with statement."""
    numbers = itertools.count(1)

    def embedded(
        folder: Path, *, auth: bool = False, with_worker: bool = True, env: Mapping[str, str] | None = None
    ) -> Fleet:
        return Stack(folder / "data", *(["--auth", "api_key"] if auth else []), with_worker=with_worker, env=env)

    def composed(
        folder: Path, *, auth: bool = False, with_worker: bool = True, env: Mapping[str, str] | None = None
    ) -> Fleet:
        project = f"{IMAGES_TAG}-acceptance-{next(numbers)}"
        return OpenFleet(project, folder, shared=shared_folder, auth=auth, with_worker=with_worker, env=env)

    return composed if is_composed else embedded


@pytest.fixture(scope="session")
def shared_folder() -> Iterator[Path]:
    """A folder that tests and flows both see, under the same name, as whichever user the flows run."""
    with tempfile.TemporaryDirectory(prefix="fleet-shared-") as name:
        folder = Path(name)
        folder.chmod(0o777)
        yield folder


@pytest.fixture(scope="session")
def stack(new_fleet: MakesFleets, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """The fleet of a newcomer: all defaults, the example flows. A test that kills its parts starts its own."""
    with new_fleet(tmp_path_factory.mktemp("stack")) as fleet:
        yield fleet


@pytest.fixture(scope="session")
def wire(stack: Fleet) -> Wire:
    """The NATS of the shared fleet."""
    return Wire(stack.nats_url)


@pytest.fixture(scope="session")
def guarded(new_fleet: MakesFleets, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """A fleet that wants API keys, without a worker. Tests keep apart by their tenants."""
    with new_fleet(tmp_path_factory.mktemp("guarded"), auth=True, with_worker=False) as fleet:
        yield fleet


@pytest.fixture(scope="session")
def flows_dir() -> Path:
    return Path(__file__).parent / "flows"


@pytest.fixture
def marks(tmp_path: Path) -> Path:
    """The file in which executions leave their marks, one line each."""
    file = tmp_path / "marks"
    file.touch()
    return file
