"""The benchmarks run in the suite on its own servers, which are fast, instead of on new ones."""

import pytest


@pytest.fixture(autouse=True)
def _servers_of_the_suite(monkeypatch: pytest.MonkeyPatch, postgres_url: str, mysql_url: str) -> None:
    monkeypatch.setenv("PERDURE_TEST_POSTGRES_URL", postgres_url)
    monkeypatch.setenv("PERDURE_TEST_MYSQL_URL", mysql_url)
