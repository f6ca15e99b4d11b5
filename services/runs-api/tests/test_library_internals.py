"""Undocumented parts of SQLAlchemy that the ledger relies on: as they were, and of a pinned range of versions."""

import inspect
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from sqlalchemy import create_engine
from sqlalchemy.engine.interfaces import Dialect
from sqlalchemy.exc import DBAPIError, OperationalError

from fleet_runs_api.ledger.sql.pipelining import named

PROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]


# Used by ledger/pipelining.py, ledger/tables.py and accept/workflow.py.
@pytest.mark.parametrize("library", ["sqlalchemy", "psycopg", "sqlmodel", "pyoco"])
def test_the_range_of_versions_has_an_end(library: str) -> None:
    [wanted] = [found for text in PROJECT["dependencies"] if (found := Requirement(text)).name == library]
    assert "<" in {one.operator for one in wanted.specifier}
    assert wanted.specifier.contains(version(library))


def test_the_methods_that_are_called_are_still_called_so() -> None:
    assert list(inspect.signature(Dialect.is_disconnect).parameters) == ["self", "e", "connection", "cursor"]
    wanted = {"statement", "params", "orig", "dbapi_base_err", "connection_invalidated", "dialect"}
    assert wanted <= set(inspect.signature(DBAPIError.instance).parameters)


def test_an_error_of_the_driver_becomes_the_error_that_sqlalchemy_would_raise() -> None:
    with create_engine("sqlite://").connect() as connection:
        error = connection.dialect.loaded_dbapi.OperationalError("database is locked")
        assert isinstance(named(error, connection), OperationalError)
