"""Fixtures of the tests of the command line."""

import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.cli.programs import Cli, Done, call
from tests.conftest import BackendDatabase
from tests.support.databases import DATABASES
from tests.support.storages import Database


@pytest.fixture(autouse=True)
def _own_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Let no setting of whoever runs the tests, or of this project, have an effect."""
    for name in [name for name in os.environ if name in ("PERDURE_URL", "DATABASE_URL", "NO_COLOR")]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(sys, "path", list(sys.path))  # the command line adds the current folder
    monkeypatch.chdir(tmp_path)


@pytest.fixture(params=DATABASES)
async def database(request: pytest.FixtureRequest, backend_database: BackendDatabase) -> AsyncIterator[Database]:
    """An empty, migrated database of each backend."""
    async with backend_database(request.param) as database:
        yield database


@pytest.fixture
async def file(backend_database: BackendDatabase) -> AsyncIterator[Database]:
    """An empty, migrated SQLite file."""
    async with backend_database("sqlite") as database:
        yield database


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Cli:
    """A function that runs a command in this process."""

    async def cli(*arguments: str, code: int = 0) -> Done:
        done = await call(capsys, arguments)
        assert done.code == code, done.out + done.err
        return done

    return cli
