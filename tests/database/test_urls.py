"""Database URLs: what the App adds to them, and what they say about the database."""

import pytest

from perdure.database.backends.sqlite.url import is_in_memory
from perdure.database.urls import limit_idle_transactions


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("postgresql://host/db", "postgresql://host/db?idle_transaction_timeout=30"),
        ("mysql://host/db?pool_size=2", "mysql://host/db?pool_size=2&idle_transaction_timeout=30"),
        ("mariadb://host/db", "mariadb://host/db?idle_transaction_timeout=30"),
        ("postgres://host/db?idle_transaction_timeout=5", "postgres://host/db?idle_transaction_timeout=5"),
        ("sqlite:///file.db", "sqlite:///file.db"),
        ("SQLite:///file.db", "SQLite:///file.db"),
    ],
)
def test_idle_transactions_are_limited_where_the_database_can(url: str, expected: str) -> None:
    assert str(limit_idle_transactions(url, 30.0)) == expected


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("sqlite:///:memory:", True),
        ("SQLITE:///:memory:", True),
        ("sqlite:///file.db", False),
        ("sqlite:///dir/:memory:.db", False),
        ("sqlite:///", False),
        ("postgresql://host/:memory:", False),
        ("", False),
    ],
)
def test_a_database_in_memory_is_recognized_by_its_whole_path(url: str, expected: bool) -> None:
    assert is_in_memory(url) is expected
