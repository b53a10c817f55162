"""A listing does not depend on the collation of the PostgreSQL database."""

from collections.abc import AsyncIterator
from uuid import uuid4

import asyncpg
import pytest

from perdure.storage.stores import SQLStorage, open_storage
from perdure.testing.conformance import listing as conformance
from perdure.testing.conformance.tables import listing as tables
from tests.support.databases import find_tables_by_plain_names


@pytest.fixture
async def american(postgres_url: str) -> AsyncIterator[SQLStorage]:
    """A storage in a database that sorts like a dictionary."""
    name = f"listing_{uuid4().hex[:12]}"
    admin = await asyncpg.connect(postgres_url)
    await admin.execute(f"CREATE DATABASE {name} TEMPLATE template0 LOCALE_PROVIDER icu ICU_LOCALE 'en-US'")
    await find_tables_by_plain_names(postgres_url, name)
    try:
        async with open_storage(postgres_url.rpartition("/")[0] + f"/{name}") as storage:
            yield storage
    finally:
        await admin.execute(f"DROP DATABASE {name} WITH (FORCE)")
        await admin.close()


async def test_ids_are_ordered_by_code_points(american: SQLStorage) -> None:
    rows = await american.db().fetch("SELECT 'a' < 'B', 'B' COLLATE \"C\" < 'a'")
    assert rows == [(True, True)]
    await tables.test_equal_times_are_ordered_by_id_in_code_points(american, american.db(), 2)


@pytest.mark.parametrize("name", ["workflow_name", "instance_id"])
async def test_name_filter_ignores_case_of_ascii_letters_only(american: SQLStorage, name: str) -> None:
    await conformance.test_name_filter_ignores_case_of_ascii_letters_only(american, name)
