"""Servers whose time zone is not UTC, and a process in another time zone."""

import os
import time
from collections.abc import AsyncIterator, Iterator

import pytest

from perdure.testing.servers import MySQLServer, PostgresServer
from tests.support.databases import named_database
from tests.support.storages import Database, server_database


@pytest.fixture(scope="module")
def far_away() -> Iterator[None]:
    """The process's own zone is neither UTC nor any server's."""
    before = os.environ.get("TZ")
    os.environ["TZ"] = "Australia/Eucla"
    time.tzset()
    yield
    del os.environ["TZ"]
    if before is not None:
        os.environ["TZ"] = before
    time.tzset()


@pytest.fixture(
    scope="module",
    params=[
        ("postgresql", "America/New_York"),
        ("postgresql", "Asia/Tokyo"),
        ("mysql", "-05:00"),
        ("mysql", "+09:00"),
    ],
    ids=lambda zone: " ".join(zone),
)
def zoned_server(request: pytest.FixtureRequest, far_away: None) -> Iterator[tuple[str, str]]:
    """A server in another zone: its kind and its URL."""
    kind, zone = request.param
    if kind == "postgresql":
        with PostgresServer(settings={"timezone": zone}) as postgres:
            yield kind, postgres.url
    else:
        with MySQLServer(settings={"default_time_zone": zone}) as mysql:
            yield kind, mysql.url


@pytest.fixture
async def database(zoned_server: tuple[str, str]) -> AsyncIterator[Database]:
    kind, url = zoned_server
    async with server_database(kind, await named_database(url, "zoned")) as database:
        yield database
