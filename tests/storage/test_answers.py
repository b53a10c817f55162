"""The declared answers of the statements: their parsing, their shapes, and what each database really returns."""

import re
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from importlib.resources import files
from typing import Any

import asyncpg
import pytest

from perdure.database.dialects.base import Bare, Part, Rendering
from perdure.database.dialects.mysql import literal
from perdure.database.statements import COUNT, Statement, parse
from perdure.storage.sql import load_statements
from tests.conftest import BackendDatabase
from tests.support.databases import connect_mysql
from tests.support.storages import Database

PLAIN = {"pieces.sql", "migrations.sql"}  # no driver renders them alone
NAMES = sorted(
    path.name.removesuffix(".sql")
    for path in files("perdure.storage.sql").iterdir()
    if path.name.endswith(".sql") and path.name not in PLAIN
)
FRAGMENTS = {  # parts of composed statements
    *("listing.select", "listing.select_bare", "listing.branch", "listing.one", "listing.count")
}
ONLY_ON = {  # where another dialect uses other statements
    "caller_transactions.schemas": ("postgresql",),
    "delivery.deliver": ("postgresql", "mysql"),
    "delivery.deliver_set": ("postgresql",),
    "delivery.survey": ("postgresql",),
    "delivery.target": ("sqlite",),
    "history.append_each": ("sqlite",),
    "history.append_locked": ("mysql",),
    "history.append_set": ("postgresql",),
    "history.fence_many": ("sqlite",),
    "instances.complete_many": ("sqlite",),
    "instances.complete_locked": ("mysql",),
    "instances.complete_set": ("postgresql",),
    "instances.create_many": ("sqlite",),
    "instances.create_rows": ("mysql",),
    "instances.create_set": ("postgresql",),
    "journals.append_and_complete": ("postgresql",),
    "locks.take": ("sqlite", "mysql"),
    "timers.fire": ("postgresql",),
    "timers.fire_set": ("postgresql",),
    "waits.listen": ("postgresql",),
    "waits.sleep": ("postgresql",),
    "wakeups.notify": ("postgresql",),
}

Width = Callable[[Part], Awaitable[int]]  # the number of columns that a part returns


def shape(text: str, answers: list[Any], dialect: str = "") -> Any:
    statement = parse("file", text)["a"]
    return statement.shape(dialect)(answers)


def test_answer_of_several_parts_is_that_of_the_last() -> None:
    text = "-- a -> id, name\n-- Text.\nUPDATE t;\nSELECT id, name FROM t"
    assert shape(text, [1, [(1, "x")]]) == [(1, "x")]


def test_marked_part_is_the_answer() -> None:
    text = "-- a -> id\n-- Text.\nUPDATE t;\n-- [answer]\nSELECT id FROM t;\nDELETE FROM t"
    assert shape(text, [1, [(1,)], 7]) == [(1,)]


def test_answer_is_empty_if_a_required_part_wrote_nothing() -> None:
    text = "-- a -> id\n-- Text.\n-- [required]\nUPDATE t;\nSELECT id FROM t"
    assert shape(text, [0, [(1,)]]) == []
    assert shape(text, [1, [(1,)]]) == [(1,)]


def test_parts_can_be_columns_of_one_row() -> None:
    text = "-- a -> fenced, id\n-- Text.\n-- [fenced]\nUPDATE t;\n-- [id]\nINSERT INTO t RETURNING id"
    assert shape(text, [1, [(5,)]]) == [(1, 5)]
    assert shape(text, [0, []]) == [(0, None)]


def test_count_is_the_number_of_rows_written_or_returned() -> None:
    text = "-- a -> count\n-- Text.\nUPDATE t\n\n-- a [postgresql]\n-- Differs.\nSELECT id FROM t"
    assert shape(text, [3]) == 3
    assert shape(text, [[(1,), (2,)]], "postgresql") == 2


def test_undeclared_answers_are_those_of_the_parts() -> None:
    assert shape("-- a\n-- Text.\nUPDATE t", [3]) == 3
    assert shape("-- a\n-- Text.\nUPDATE t;\nSELECT 1", [3, [(1,)]]) == (3, [(1,)])


def test_columns_continue_after_a_comma() -> None:
    assert parse("file", "-- a -> b, c,\n--   d\n-- Text.\nSELECT b, c, d")["a"].columns == ("b", "c", "d")


@pytest.mark.parametrize(
    "text",
    [
        "-- a -> b\n-- An unknown role.\n-- [other]\nUPDATE t;\nSELECT 1",
        "-- a -> b\n-- Text.\nSELECT 1\n\n-- a [mysql] -> c\n-- Differs in its answer.\nSELECT 2",
    ],
)
def test_invalid_declaration_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match=r"file\.a"):
        parse("file", text)


def test_statements_without_an_answer_return_nothing() -> None:
    assert load_statements("groups").join.shape("sqlite")([1]) is None


@pytest.fixture(params=["sqlite", "postgresql", "mysql"])
async def measured(
    request: pytest.FixtureRequest, backend_database: BackendDatabase
) -> AsyncIterator[tuple[Rendering, Width]]:
    """A dialect, and how its database counts the columns of a part."""
    async with AsyncExitStack() as stack:
        database = await stack.enter_async_context(backend_database(request.param))
        driver = (await database.storage())._backend.driver
        yield driver, await WIDTHS[request.param](database, stack)


async def sqlite_width(database: Database, stack: AsyncExitStack) -> Width:
    connection = sqlite3.connect(database.url.removeprefix("sqlite:///"))
    connection.execute("PRAGMA ignore_check_constraints = ON")
    stack.callback(connection.close)

    async def width(part: Part) -> int:
        try:
            return len(connection.execute(part.text, [1] * len(part.names)).description)
        finally:
            connection.rollback()

    return width


async def postgres_width(database: Database, stack: AsyncExitStack) -> Width:
    connection = await asyncpg.connect(database.url)
    stack.push_async_callback(connection.close)

    async def width(part: Part) -> int:
        return len((await connection.prepare(part.text)).get_attributes())

    return width


async def mysql_width(database: Database, stack: AsyncExitStack) -> Width:
    connection = await stack.enter_async_context(connect_mysql(database.url))

    async def width(part: Part) -> int:
        if part.inserts and "RETURNING" not in part.text:
            return 1  # the generated id
        values = {name: literal(_value(part.text, name)) for name in part.names}
        async with connection.cursor() as cursor:
            await cursor.execute(part.text % values)
            return len(cursor.description)

    def _value(text: str, name: str) -> object:
        place = re.escape(f"%({name})s")
        if re.search(rf"\) IN \({place}", text):  # pairs
            return Bare([("a", "b")])
        if found := re.search(rf"\(([^()]*(?:\([^()]*\)[^()]*)*)\) IN {place}", text):
            columns = found[1].count(",") + 1
            return [("a",) * columns] if columns > 1 else ["a"]
        return ["a"] if re.search(rf"IN {place}", text) else 1

    return width


WIDTHS = {"sqlite": sqlite_width, "postgresql": postgres_width, "mysql": mysql_width}


def answering(statement: Statement, dialect: str) -> dict[int, int]:
    """The parts that make the answer, with the number of columns that each has to return."""
    assert statement.columns is not None
    roles = statement.roles.get(dialect) or statement.roles[""]
    if set(roles) & set(statement.columns):
        return {at: 1 for at, role in enumerate(roles) if role in statement.columns}
    at = roles.index("answer") if "answer" in roles else len(roles) - 1
    return {at: len(statement.columns)}


@pytest.mark.parametrize("name", NAMES)
async def test_every_database_returns_the_declared_columns(name: str, measured: tuple[Rendering, Width]) -> None:
    driver, width = measured
    for statement in load_statements(name):
        if statement.name in FRAGMENTS or driver.name not in ONLY_ON.get(statement.name, (driver.name,)):
            continue
        if not statement.columns or statement.columns == COUNT:
            continue
        parts = driver.parts(statement)
        for at, expected in answering(statement, driver.name).items():
            if parts[at].reads:
                assert await width(parts[at]) == expected, statement.name
