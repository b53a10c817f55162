"""The databases that the tests of the testing kit run on."""

from pathlib import Path

import pytest

DATABASES = ("memory", "sqlite", "postgresql", "mysql")


def url_of(database: str, request: pytest.FixtureRequest, tmp_path: Path) -> str | None:
    """Return the URL that a TestApp takes for a database; None for one in memory."""
    if database == "memory":
        return None
    if database == "sqlite":
        return f"sqlite:///{tmp_path / 'test.db'}"
    server: str = request.getfixturevalue("postgres_url" if database == "postgresql" else "mysql_url")
    return server
