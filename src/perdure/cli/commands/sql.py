"""`perdure sql`: one SELECT or EXPLAIN, on a connection that cannot write."""

import asyncio
import base64
import json
import re
import sqlite3
import sys
from datetime import datetime
from decimal import Decimal
from math import isfinite
from typing import Annotated, Any

from cyclopts import Parameter

from perdure.cli.exits import CommandError, UsageError
from perdure.cli.inputs import STDIN_FILE, interruptible
from perdure.cli.options import COMMON, Common
from perdure.cli.output import Column, Output
from perdure.cli.settings import database_url
from perdure.cli.sqlite_file import Rows, fetch_rows
from perdure.database.dialects import new_driver
from perdure.database.dialects.postgres import quoted
from perdure.inspection.documents import stamp
from perdure.storage.stores import open_read_only, sqlite_path

LIMIT = 1000
# Names in backquotes, comments in slashes, numbers, words, and all other characters: the same in each dialect.
_COMMON = r"`[^`]*`|/\*.*?\*/|\.?\d[\d.]*(?:e[+-]?\d+)?|[a-z_]\w*|."
_TOKEN = re.compile(
    r"""'(?:[^']|'')*'|"(?:[^"]|"")*"|--[^\n]*|""" + _COMMON,
    re.DOTALL | re.IGNORECASE,
)
# In MySQL a backslash escapes in texts, `--` is a comment before a space only, and `#` is one. This matters, because
# its driver sends several statements at once: one that was mistaken for a text or a comment could write.
_MYSQL_TOKEN = re.compile(
    r"""'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*"|--(?=[\x01-\x20\x7f]|\Z)[^\n]*|\#[^\n]*|""" + _COMMON,
    re.DOTALL | re.IGNORECASE,
)
_FIRST = ("select", "explain", "with")
# They lock rows, write files or variables, or execute what they explain.
_REFUSED = {
    "into",
    "update",
    "insert",
    "delete",
    "share",
    "lock",
    "copy",
    "call",
    "do",
    "analyze",
    "analyse",
    "outfile",
}


async def sql(
    statement: Annotated[str, Parameter(help="One SELECT, WITH or EXPLAIN; - reads it from stdin.")],
    /,
    *,
    limit: Annotated[int, Parameter(name=("--limit", "-n"), help="Maximum number of rows.")] = LIMIT,
    timeout: Annotated[float, Parameter(help="Seconds after which the statement is given up.")] = 30.0,
    common: Common = COMMON,
) -> None:
    """Run one SELECT or EXPLAIN on the database, which is opened read-only. The tables are in docs/storage.md."""
    if limit < 1 or timeout <= 0:
        raise UsageError("--limit and --timeout must be above 0")
    url = database_url(common)
    text = checked(_read(statement), new_driver(url).name)
    try:
        async with asyncio.timeout(timeout):
            names, rows = await _fetch(url, text, limit + 1, timeout)
    except TimeoutError:
        raise CommandError(f"the statement has not ended after {timeout:g} s: add a condition, or --timeout") from None
    documents = [dict(zip(_unique(names), map(_plain, row), strict=True)) for row in rows[:limit]]
    output = Output(common)
    output.listing("rows", documents, [Column(name, is_whole=True) for name in _unique(names)])
    if len(rows) > limit:
        output.note(f"there are more than {limit:,} rows: add LIMIT, or --limit")


def checked(text: str, dialect: str) -> str:
    """Return the statement without a final semicolon; raise `UsageError` unless it is one that only reads."""
    if "\0" in text:  # which ends a comment in MySQL
        raise UsageError("the statement has a NUL character: remove it")
    words: list[str] = []
    for token in (_MYSQL_TOKEN if dialect == "mysql" else _TOKEN).findall(text):
        if token.startswith(("/*!", "/*M!")):
            raise UsageError("comments that MySQL executes (/*! … */) are not allowed")
        if len(token) > 1 and token.startswith(("--", "/*", "#")):
            continue
        if not token.isspace() and token[0] not in "'\"`":
            words.append(token.lower())
        elif not token.isspace():
            words.append("'")
    while words and words[-1] == ";":
        words.pop()
        text = text.rstrip().removesuffix(";")
    if not words or words[0] not in _FIRST or ";" in words:
        raise UsageError("only one SELECT, WITH or EXPLAIN is allowed: the database is opened read-only")
    if refused := next((word for word in words if word in _REFUSED), None):
        raise UsageError(
            f"{refused.upper()} is not allowed, because such a statement can write, lock or execute; quote the word if "
            "it is a name"
        )
    return text


def _read(statement: str) -> str:
    if statement != STDIN_FILE:
        return statement
    with interruptible():
        return sys.stdin.read()


async def _fetch(url: str, text: str, limit: int, timeout: float) -> Rows:
    dialect = new_driver(url).name
    if dialect == "sqlite":  # a thread cannot be cancelled, so SQLite itself looks at the clock
        return await asyncio.to_thread(_fetch_sqlite, sqlite_path(url), text, limit, timeout)
    async with open_read_only(url) as storage, storage.transaction() as transaction:
        try:
            if dialect == "postgresql":
                return await _fetch_postgres(transaction.native, storage.schema, text, limit, timeout)
            return await _fetch_mysql(transaction.native, text, limit)
        except Exception as error:  # of the driver, whose classes differ
            raise CommandError(f"the database refused the statement: {error}", code="cli.sql") from error


def _fetch_sqlite(path: str, text: str, limit: int, timeout: float) -> Rows:
    try:
        return fetch_rows(path, text, limit, timeout)
    except sqlite3.Error as error:
        raise CommandError(f"the database refused the statement: {error}", code="cli.sql") from error


async def _fetch_postgres(connection: Any, schema: str, text: str, limit: int, timeout: float) -> Rows:
    await connection.execute("SET TRANSACTION READ ONLY")  # also behind a pooler
    await connection.execute(f"SET LOCAL statement_timeout = {max(1, round(1000 * timeout))}")
    await connection.execute(f"SET LOCAL search_path = {quoted(schema)}, public")
    prepared = await connection.prepare(text)
    names = [each.name for each in prepared.get_attributes()]
    cursor = await prepared.cursor()
    return names, [tuple(row) for row in await cursor.fetch(limit)]


async def _fetch_mysql(connection: Any, text: str, limit: int) -> Rows:
    async with connection.cursor() as cursor:
        await cursor.execute(text)
        names = [each[0] for each in cursor.description or ()]
        return names, list(await cursor.fetchmany(limit))


def _unique(names: list[str]) -> list[str]:
    """Return the names of the columns; equal ones get a number."""
    found: list[str] = []
    for name in names:
        found.append(name if name not in found else f"{name}_{len(found) + 1}")
    return found


def _plain(value: object) -> object:
    match value:
        case float() if not isfinite(value):  # which JSON has no form for
            return str(value)
        case None | bool() | int() | float() | str():
            return value
        case Decimal() if value.is_finite():
            return int(value) if value == int(value) else float(value)
        case bytes():
            return _text(value)
        case datetime():
            return stamp(value) if value.tzinfo else value.isoformat()
    return str(value)


def _text(value: bytes) -> object:
    """Return bytes as text: MySQL and SQLite store JSON as bytes."""
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return base64.b64encode(value).decode()
    try:
        return json.loads(text) if text[:1] in "{[" else text
    except ValueError:
        return text
