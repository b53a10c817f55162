"""The same operations on the reference and every database: every answer and, at the end, every row is the same.

One to three workers take turns. While one has a transaction open the others look, and must not see it.

    PERDURE_PROPERTY_EXAMPLES=1000 pytest tests/storage/properties --hypothesis-show-statistics

looks longer, and prints in how many sequences each operation was answered and how. A failure prints the few steps it
takes and the seed: `@example(seed=…)` above the test runs it again.
"""

import asyncio
import inspect
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from random import Random

import asyncpg
import pytest
from hypothesis import HealthCheck, Phase, event, given, settings
from hypothesis import strategies as st

from perdure.storage.stores import SQLStorage
from tests.storage.properties.comparison import disagreement
from tests.storage.properties.executors import DatabaseUnderTest
from tests.storage.properties.operations import AGGREGATES
from tests.storage.properties.reference import ReferenceUnderTest
from tests.storage.properties.sequences import WORKERS, sequence
from tests.storage.properties.steps import Step
from tests.support.databases import find_tables_by_plain_names, named_database
from tests.support.leaks import kept
from tests.support.storages import Database, memory_database, server_database, sqlite_database

EXAMPLES = int(os.environ.get("PERDURE_PROPERTY_EXAMPLES", "25"))

pytestmark = pytest.mark.timeout(600 + 2 * EXAMPLES)  # a failure is made smaller first

# Not answers: how a storage is opened and closed, what stands for several operations here, and hints.
NOT_COMPARED = {
    "initialize", "close", "db", "conn", "transaction", "detached", "register_post_commit_callback", "wakeups",
    "now", "pending_migrations",
    "pending_waits",  # of messages that have no keys yet a database says only that there may be one
}  # fmt: skip


class DatabasesUnderTest:
    """The databases, on an event loop that lives as long as their connections."""

    def __init__(self, runner: asyncio.Runner, subjects: Sequence[DatabaseUnderTest]) -> None:
        self._runner, self._subjects = runner, subjects

    def compare(self, steps: Sequence[Step]) -> str:
        """How they disagree; nothing if they agree."""
        with kept():  # SQLite starts the threads that read when it needs them
            return self._runner.run(disagreement(self._subjects, steps))

    def last_answers(self) -> list[str]:
        """What the reference answered last."""
        return self._subjects[0].answers


@pytest.fixture(scope="module")
def subjects(
    tmp_path_factory: pytest.TempPathFactory,
    sqlite_template: Path,
    shared_database_name: str,
    postgres_url: str,
    mysql_url: str,
) -> Iterator[DatabasesUnderTest]:
    def sides(database: Database) -> int:
        return 1 if database.backend == "memory" else WORKERS

    async def opened(stack: AsyncExitStack) -> list[DatabaseUnderTest]:
        contexts = [
            sqlite_database(tmp_path_factory.mktemp("properties"), sqlite_template),
            memory_database(),
            server_database("postgresql", await sorting_database(postgres_url, f"{shared_database_name}_sorting")),
            server_database("mysql", await named_database(mysql_url, shared_database_name)),
        ]
        databases = [await stack.enter_async_context(context) for context in contexts]
        found = [
            DatabaseUnderTest(each.backend, [await each.storage() for _ in range(sides(each))]) for each in databases
        ]
        return [ReferenceUnderTest(WORKERS), *found]

    with asyncio.Runner() as runner:
        stack = AsyncExitStack()
        try:
            yield DatabasesUnderTest(runner, runner.run(opened(stack)))
        finally:
            runner.run(stack.aclose())


async def sorting_database(server: str, name: str) -> str:
    """The URL of a database that sorts texts as dictionaries do, which no answer may show; from PostgreSQL 15 on."""
    connection = await asyncpg.connect(server)
    try:
        with suppress(asyncpg.PostgresError):
            await connection.execute(
                f"CREATE DATABASE {name} TEMPLATE template0 LOCALE 'C' LOCALE_PROVIDER icu ICU_LOCALE 'en-US'"
            )
            await find_tables_by_plain_names(server, name)
    finally:
        await connection.close()
    return await named_database(server, name)


@settings(
    max_examples=EXAMPLES,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],  # a few steps are left out faster than Hypothesis shrinks
    suppress_health_check=[HealthCheck.too_slow],
)
@given(seed=st.binary(min_size=8, max_size=8))
def test_every_database_gives_the_same_results(subjects: DatabasesUnderTest, seed: bytes) -> None:
    steps = sequence(Random(seed))
    wrong = subjects.compare(steps)
    if wrong:
        raise AssertionError(wrong)
    for step, answer in zip(steps, subjects.last_answers(), strict=True):
        kind = re.split(r"[(#](?!\)$)", answer)[0]
        event(f"{step.operation}: {kind[:30]}")


def test_every_operation_is_compared() -> None:
    public = {name for name, _ in inspect.getmembers(SQLStorage, inspect.isfunction) if not name.startswith("_")}
    compared = {name for aggregate in AGGREGATES.values() for name in aggregate}
    assert public - NOT_COMPARED - compared == set()
