"""The MySQL backend alone, with small statements on its own tables; on MariaDB or MySQL, depending on `mysql_url`."""

import asyncio
import random
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from enum import StrEnum
from typing import Any
from urllib.parse import quote, urlsplit

import asyncmy
import pytest
from asyncmy.constants import ER
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perdure.database import pacing
from perdure.database.backends import polling
from perdure.database.backends.mysql import MySQLBackend
from perdure.database.backends.mysql import backend as mysql
from perdure.database.backends.mysql.errors import connection_error
from perdure.database.backends.mysql.url import parse as parse_url
from perdure.database.backends.server.retries import Fault
from perdure.database.dialects.mysql import literal
from perdure.database.operation import Operation, Work
from perdure.database.statements import Call, parse
from perdure.errors import (
    CommitUnknownError,
    ConfigurationError,
    DatabaseUnavailableError,
    LimitError,
    SchemaError,
    StorageError,
    TransactionConflictError,
)
from perdure.storage.transactions import Transactions
from perdure.testing.servers import MySQLServer
from tests.support.blocking import next_picture
from tests.support.databases import connect_mysql, fetch_mysql

MIB = 1024 * 1024

TABLES = (
    "CREATE TABLE item (id VARCHAR(50) PRIMARY KEY, n INT NOT NULL DEFAULT 0, token BIGINT NOT NULL DEFAULT 1) "
    "ENGINE=InnoDB CHARACTER SET utf8mb4 COLLATE utf8mb4_bin",
    "CREATE TABLE event (id BIGINT AUTO_INCREMENT PRIMARY KEY, item VARCHAR(50) NOT NULL, name VARCHAR(50) NOT NULL, "
    "text LONGTEXT, bytes LONGBLOB, at DATETIME(6), UNIQUE (item, name)) "
    "ENGINE=InnoDB CHARACTER SET utf8mb4 COLLATE utf8mb4_bin",
    "INSERT INTO item (id) VALUES ('a'), ('b'), ('c')",
)

S = parse(
    "test",
    """
-- bump
-- Count up.
UPDATE item SET n = n + 1 WHERE id = :id

-- n
-- The count.
SELECT n FROM item WHERE id = :id

-- port
-- Which server this is.
SELECT @@port

-- same
-- Changes nothing in the rows it finds.
UPDATE item SET n = n WHERE id {any(:ids)}

-- percent
-- Templates write it once.
SELECT id FROM item WHERE id LIKE '%' AND id {any(:ids)} ORDER BY id

-- add
-- A new event, or nothing.
INSERT INTO event (item, name) VALUES (:item, :name) {on_conflict_do_nothing(item, name)} {returning(id)}

-- strict
-- A new event, or an error.
INSERT INTO event (item, name) VALUES (:item, :name)

-- store
-- One payload.
INSERT INTO event (item, name, text, bytes) VALUES (:item, :name, :text, :bytes)

-- load
-- Payloads of an item.
SELECT text, bytes FROM event WHERE item = :item ORDER BY name

-- store_both
-- Two payloads, together too much for one packet.
INSERT INTO event (item, name, text) VALUES (:item, 'one', :one);
INSERT INTO event (item, name, text) VALUES (:item, 'two', :two)

-- step
-- A fenced step.
UPDATE item SET n = n + 1 WHERE id = :id AND token = :token;
INSERT INTO event (item, name) SELECT id, :name FROM item WHERE id = :id AND token = :token
{on_conflict_do_nothing(item, name)} {returning(id)}

-- three
-- Any of its inserts may be there already.
INSERT INTO event (item, name) VALUES (:item, :one) {on_conflict_do_nothing(item, name)};
INSERT INTO event (item, name) VALUES (:item, :two) {on_conflict_do_nothing(item, name)} {returning(id)};
UPDATE item SET n = n + 1 WHERE id = :item;
SELECT n FROM item WHERE id = :item;
INSERT INTO event (item, name) VALUES (:item, :three) {on_conflict_do_nothing(item, name)}

-- half
-- The second part fails if the event is there.
UPDATE item SET n = n + 1 WHERE id = :item;
INSERT INTO event (item, name) VALUES (:item, :name)

-- nowhere
-- No such table.
SELECT 1 FROM missing
""",
)


def one(call: Call, **options: Any) -> Work[Any]:
    """One call as a transaction of its own."""
    return Work(lambda: several(call), single=True, **options)


def several(*calls: Call) -> Operation[Any]:
    answers = []
    for call in calls:
        answers.append((yield call))
    return answers[0] if len(calls) == 1 else answers


@asynccontextmanager
async def opened(url: str, **options: Any) -> AsyncIterator[MySQLBackend]:
    backend = MySQLBackend(url, **options)
    await backend.open()
    try:
        yield backend
    finally:
        await backend.close()


async def make_tables(backend: MySQLBackend) -> None:
    async with backend.exclusive() as script:
        for statement in TABLES:
            await script.execute(statement)


@pytest.fixture
async def backend(fresh_mysql_db: str) -> AsyncIterator[MySQLBackend]:
    async with opened(fresh_mysql_db, pool_size=4) as backend:
        await make_tables(backend)
        yield backend


@pytest.fixture(scope="module")
def own_server() -> Iterator[MySQLServer]:
    """A server to restart and to misconfigure."""
    with MySQLServer() as server:
        yield server


async def shortly() -> None:
    await asyncio.sleep(0.005)


async def until(condition: Callable[[], Awaitable[Any]], pause: Callable[[], Awaitable[None]] = shortly) -> Any:
    """Wait until a condition holds in the database; the test's timeout is the bound."""
    while True:
        if found := await condition():
            return found
        await pause()


async def blocked(backend: MySQLBackend) -> Any:
    """Wait until a transaction of this database waits for a row."""
    query = (
        "SELECT trx_mysql_thread_id FROM information_schema.innodb_trx t JOIN information_schema.processlist p "
        "ON p.id = t.trx_mysql_thread_id WHERE p.db = DATABASE() AND t.trx_state = 'LOCK WAIT'"
    )
    return await until(lambda: backend.executor().fetchval(query), next_picture)


async def quiet(url: str) -> None:
    """Wait until no transaction is open in this database."""
    query = (
        "SELECT COUNT(*) FROM information_schema.innodb_trx t JOIN information_schema.processlist p "
        "ON p.id = t.trx_mysql_thread_id WHERE p.db = DATABASE()"
    )
    async with connect_mysql(url) as connection:

        async def none_open() -> bool:
            return bool((await fetch_mysql(connection, query))[0][0] == 0)

        await asyncio.wait_for(until(none_open, next_picture), 20)


async def count(backend: MySQLBackend, item: str = "a") -> int:
    n: int = await backend.executor().fetchval("SELECT n FROM item WHERE id = %s", item)
    return n


def chain(error: BaseException | None) -> str:
    """All text that can be had from an error and those it hangs on."""
    text = ""
    while error is not None:
        text += f"{error!s} {error!r} {error.args!r} {getattr(error, '__notes__', '')}\n"
        error = error.__cause__ or error.__context__
    return text


# The URL, and what may be wrong with it.


def test_url_is_parsed() -> None:
    hosts, login, options = parse_url("mysql://us%40er:p%3A%2F%C3%B6@one:3307,[::1],two/my%20db?pool_size=20&ssl=false")
    assert hosts == [("one", 3307), ("::1", 3306), ("two", 3306)]
    assert (login["user"], login["password"], login["database"]) == ("us@er", "p:/ö".encode(), "my db")
    assert options["pool_size"] == 20
    assert login["ssl"] is None
    assert parse_url("mariadb:///db?unix_socket=/run/x.sock")[1]["unix_socket"] == "/run/x.sock"


@pytest.mark.parametrize(("mode", "verifies"), [("true", False), ("verify", True)])
def test_certificate_of_the_server_is_verified_if_the_url_says_so(mode: str, verifies: bool) -> None:
    _, login, _ = parse_url(f"mysql://u@host/db?ssl={mode}")
    assert login["ssl"].check_hostname is verifies
    assert login["ssl"].verify_mode is (ssl.CERT_REQUIRED if verifies else ssl.CERT_NONE)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("mysql://u:hunter2@host/db?pool_sise=3", "unknown option 'pool_sise'"),
        ("mysql://u:hunter2@host/db?pool_size=many", "pool_size of the MySQL URL must be a number"),
        ("mysql://u:hunter2@host/db?pool_size=0", "pool_size of the MySQL URL must be a number"),
        ("mysql://u:hunter2@host/db?ssl=maybe", "must be false, true or verify"),
        ("mysql://u:hunter2@host/db?ssl_ca=/nowhere.pem", "certificates of the MySQL URL cannot be used"),
        ("mysql://u:hunter2@host", "names no database"),
        ("mysql://u:hunter2@host:port/db", "percent-encoded"),
        ("mysql://u:/hunter2@host/db", "percent-encoded"),
        ("mysql://u:?hunter2@host/db", "percent-encoded"),
        ("mysql://u:hun/ter2?hunter2=1@host/db", "percent-encoded"),
        ("postgresql://u:hunter2@host/db", "the MySQL URL is malformed"),
    ],
)
def test_error_for_an_invalid_url_is_one_line_without_the_password(url: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said) as raised:
        MySQLBackend(url)
    assert "hunter2" not in chain(raised.value)
    assert "\n" not in str(raised.value)


async def test_error_for_a_rejected_login_gives_the_reason_without_the_password(mysql_url: str) -> None:
    place, database = mysql_url.rpartition("@")[2].split("/")
    wrong = {
        f"mysql://root:hunter2@{place}/{database}": (ConfigurationError, "wrong password"),
        f"mysql://hunter:hunter2@{place}/{database}": (ConfigurationError, "rejected user 'hunter'"),
        f"mysql://root:hunter2@127.0.0.1:1/{database}": (DatabaseUnavailableError, "127.0.0.1:1 cannot be reached"),
        f"mysql://root@{place}/no_such_hunter3": (ConfigurationError, "no database 'no_such_hunter3'"),
    }
    for url, (kind, said) in wrong.items():
        backend = MySQLBackend(url)
        with pytest.raises(kind, match=said) as raised:
            await backend.open()
        assert "hunter2" not in chain(raised.value) + repr(backend)
        assert "\n" not in str(raised.value)
        await backend.close()


async def test_connecting_to_a_silent_server_times_out(mysql_url: str) -> None:
    async with Proxy(mysql_url) as proxy:
        proxy.unresponsive = True
        backend = MySQLBackend(proxy.url + "?connect_timeout=0.2")
        with pytest.raises(DatabaseUnavailableError, match=r"did not answer within 0.2 s"):
            await backend.open()


def test_missing_driver_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mysql, "asyncmy", None)
    with pytest.raises(ConfigurationError, match=r"install perdure\[mysql\]"):
        MySQLBackend("mysql://root@127.0.0.1/test")


async def test_url_options_are_applied(fresh_mysql_db: str) -> None:
    async with opened(f"{fresh_mysql_db}?pool_size=1&pool_timeout=0.05") as backend:
        session = await backend.begin()
        with pytest.raises(DatabaseUnavailableError, match="all 1 are in use"):
            await backend._pool.acquire()
        await session.rollback()


async def test_password_may_contain_any_characters(fresh_mysql_db: str) -> None:
    parts, name, password = urlsplit(fresh_mysql_db), f"u{random.randrange(10**9)}", "p@s:s/w?ö%'\"€"
    async with opened(fresh_mysql_db) as admin:
        sql = admin.executor()
        await sql.execute(f"CREATE USER {name} IDENTIFIED BY %s", password)
        try:
            await sql.execute(f"GRANT ALL ON {parts.path[1:]}.* TO {name}")
            for _ in range(2):  # MySQL's caching_sha2_password takes another way once it knows the user
                place = f"{parts.hostname}:{parts.port}{parts.path}"
                async with opened(f"mysql://{name}:{quote(password, safe='')}@{place}") as backend:
                    assert await backend.executor().fetchval("SELECT CURRENT_USER()") == f"{name}@%"
        finally:
            await sql.execute(f"DROP USER {name}")


async def test_hosts_are_tried_in_order_and_read_only_hosts_are_skipped(
    own_server: MySQLServer, mysql_url: str
) -> None:
    parts = urlsplit(mysql_url)
    replica, primary = f"127.0.0.1:{own_server.port}", f"{parts.hostname}:{parts.port}"
    async with connect_mysql(own_server.url) as admin:
        await fetch_mysql(admin, "SET GLOBAL read_only = 1")
        try:
            async with opened(f"mysql://root@127.0.0.1:1,{replica},{primary}{parts.path}") as backend:
                assert await backend.executor().fetchval("SELECT @@port") == parts.port
            async with opened(f"mysql://root@{replica}{parts.path}") as backend:
                assert await backend.executor().fetchval("SELECT @@port") == own_server.port
        finally:
            await fetch_mysql(admin, "SET GLOBAL read_only = 0")


async def test_write_to_a_demoted_server_is_retried_on_the_next(own_server: MySQLServer, fresh_mysql_db: str) -> None:
    other, name = urlsplit(fresh_mysql_db), urlsplit(fresh_mysql_db).path[1:]
    async with connect_mysql(own_server.url) as first, connect_mysql(fresh_mysql_db) as second:
        await fetch_mysql(first, f"CREATE DATABASE {name}")
        for admin in (first, second):
            await fetch_mysql(admin, "CREATE USER mover")
            await fetch_mysql(admin, f"GRANT ALL ON {name}.* TO mover")
        hosts = f"127.0.0.1:{own_server.port},{other.hostname}:{other.port}"
        try:
            for url in (own_server.url.replace("/test", f"/{name}"), fresh_mysql_db):
                async with opened(url) as backend:
                    await make_tables(backend)
            async with opened(f"mysql://mover@{hosts}/{name}", pool_size=3) as backend:
                reader = await backend.begin()
                assert await backend.read(one(S["port"]()), bounded=True) == [(own_server.port,)]
                await fetch_mysql(first, "SET GLOBAL read_only = 1")
                assert await backend.write(one(S["bump"](id="a"))) == 1
                await reader.rollback()
                found = await asyncio.gather(*[backend.read(one(S["port"]()), bounded=True) for _ in range(3)])
                assert found == [[(other.port,)]] * 3, "no read returns what may be stale"
        finally:
            await fetch_mysql(first, "SET GLOBAL read_only = 0")
            await fetch_mysql(first, f"DROP DATABASE {name}")
            for admin in (first, second):
                await fetch_mysql(admin, "DROP USER mover")


async def test_open_fails_if_all_hosts_are_read_only(own_server: MySQLServer) -> None:
    async with connect_mysql(own_server.url) as admin:
        await fetch_mysql(admin, "SET GLOBAL read_only = 1")
        try:
            with pytest.raises(DatabaseUnavailableError, match="is read-only"):
                await MySQLBackend(f"mysql://root@127.0.0.1:1,127.0.0.1:{own_server.port}/test").open()
        finally:
            await fetch_mysql(admin, "SET GLOBAL read_only = 0")


async def test_server_with_a_small_max_allowed_packet_is_refused(own_server: MySQLServer) -> None:
    async with connect_mysql(own_server.url) as admin:
        await fetch_mysql(admin, "SET GLOBAL max_allowed_packet = 8388608")
        try:
            with pytest.raises(ConfigurationError, match="set max_allowed_packet to 16M or more"):
                await MySQLBackend(own_server.url).open()
        finally:
            await fetch_mysql(admin, "SET GLOBAL max_allowed_packet = 16777216")


async def test_session_settings_do_not_depend_on_the_server(own_server: MySQLServer) -> None:
    async with connect_mysql(own_server.url) as admin:
        mode, zone = (await fetch_mysql(admin, "SELECT @@GLOBAL.sql_mode, @@GLOBAL.time_zone"))[0]
        await fetch_mysql(
            admin, "SET GLOBAL sql_mode = 'ANSI_QUOTES,NO_BACKSLASH_ESCAPES', GLOBAL time_zone = '+09:00'"
        )
        await fetch_mysql(admin, "SET GLOBAL autocommit = 0")
        try:
            async with opened(own_server.url) as backend:
                sql = backend.executor()
                assert await sql.fetchval('SELECT "x\\\\" = %s', "x\\") == 1
                assert await sql.fetchval("SELECT NOW() = UTC_TIMESTAMP()") == 1
                assert await sql.fetchval("SELECT @@autocommit") == 1
                assert await sql.fetchval("SELECT @@collation_connection") == "utf8mb4_bin"
                assert await sql.fetchval("SELECT @@innodb_lock_wait_timeout") == 10
                assert "STRICT_ALL_TABLES" in await sql.fetchval("SELECT @@sql_mode")
                isolation = "SHOW SESSION VARIABLES WHERE Variable_name IN ('tx_isolation', 'transaction_isolation')"
                assert {row[1] for row in await sql.fetch(isolation)} == {"READ-COMMITTED"}
        finally:
            await fetch_mysql(admin, "SET GLOBAL autocommit = 1")
            await fetch_mysql(admin, f"SET GLOBAL sql_mode = '{mode}', GLOBAL time_zone = '{zone}'")


# Values.


class Colour(StrEnum):
    RED = "r'ed"


VALUES = st.one_of(
    st.none(),
    st.integers(-(2**63), 2**64 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(),
    st.text(alphabet="'\"\\%_\0\n\r\x1a`;-/*🦊ö{}:"),
    st.binary(),
)


def test_values_are_read_back_unchanged(fresh_mysql_db: str) -> None:
    with asyncio.Runner() as runner:
        backend = MySQLBackend(fresh_mysql_db)
        runner.run(backend.open())

        @settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
        @given(st.lists(VALUES, min_size=1, max_size=20))
        def check(values: list[object]) -> None:
            query = "SELECT " + ", ".join(["%s"] * len(values))
            assert runner.run(backend.executor().fetchrow(query, *values)) == tuple(values)

        @settings(max_examples=50, deadline=None, suppress_health_check=list(HealthCheck))
        @given(st.lists(st.text(max_size=5), max_size=5), st.text(max_size=5))
        def check_list(texts: list[str], text: str) -> None:
            found = runner.run(backend.executor().fetchval("SELECT BINARY %s IN %s", text, texts))
            assert bool(found) == (text in texts)

        @settings(max_examples=50, deadline=None, suppress_health_check=list(HealthCheck))
        @given(st.datetimes())
        def check_time(moment: datetime) -> None:
            assert runner.run(backend.executor().fetchval("SELECT %s", moment)) == moment

        check()
        check_list()
        check_time()
        runner.run(backend.close())


async def test_enum_decimal_and_zoned_values_are_bound(backend: MySQLBackend) -> None:
    tokyo = datetime(2024, 1, 1, 9, tzinfo=timezone(timedelta(hours=9)))
    given: tuple[object, ...] = (
        Colour.RED,
        True,
        bytearray(b"\0'"),
        Decimal("1.50"),
        tokyo,
        [],
        datetime(2024, 1, 1, tzinfo=UTC),
    )
    query = "SELECT %s, %s, %s, %s, %s, 1 IN %s, %s"
    answer = ("r'ed", 1, b"\0'", Decimal("1.50"), datetime(2024, 1, 1), None, datetime(2024, 1, 1))
    assert await backend.executor().fetchrow(query, *given) == answer


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_number_that_is_not_finite_is_refused(value: float) -> None:
    with pytest.raises(LimitError):
        literal(value)


async def test_a_lone_surrogate_is_refused(backend: MySQLBackend) -> None:
    with pytest.raises(LimitError, match="surrogate"):
        await backend.write(one(S["store"](item="a", name="x", text="\ud800", bytes=None)))
    with pytest.raises(LimitError, match="surrogate"):
        await backend.write(one(S["store"](item="a", name="x", text="\udc80'", bytes=None)))
    with pytest.raises(TypeError):
        literal(object())


async def test_eight_mebibytes_are_read_back_byte_for_byte(backend: MySQLBackend) -> None:
    texts = ["'\\" * (4 * MIB), "🦊" * (2 * MIB), "\n\"'" * (MIB // 3) + "x"]
    noise = random.Random(8).randbytes(8 * MIB)
    for number, text in enumerate(texts):
        await backend.write(one(S["store"](item="a", name=str(number), text=text, bytes=None)))
    await backend.write(one(S["store"](item="b", name="noise", text=None, bytes=noise)))
    assert [row[0] for row in await backend.read(one(S["load"](item="a")), bounded=True)] == texts
    assert await backend.read(one(S["load"](item="b")), bounded=True) == [(None, noise)]


async def test_statement_parts_too_large_for_one_packet_are_sent_separately(backend: MySQLBackend) -> None:
    backend._packet_max = 3 * MIB
    await backend.write(one(S["store_both"](item="c", one="x" * (2 * MIB), two="\\" * (2 * MIB))))
    assert await backend.executor().fetchval("SELECT SUM(LENGTH(text)) FROM event") == 4 * MIB
    with pytest.raises(LimitError, match="max_allowed_packet"):
        await backend.write(one(S["store_both"](item="d", one="fits", two="x" * (3 * MIB))))
    assert await backend.executor().fetchval("SELECT COUNT(*) FROM event WHERE item = 'd'") == 0


async def test_the_largest_packet_is_accepted(backend: MySQLBackend) -> None:
    query = "SELECT LENGTH('')"
    filled = query.replace("''", f"'{'x' * (backend._packet_max - 1 - len(query))}'")
    assert await backend.executor().fetchval(filled) == backend._packet_max - 1 - len(query)
    with pytest.raises(LimitError, match="max_allowed_packet"):
        await backend.executor().fetchval(filled + " ")


# Answers.


async def test_statements_return_row_counts_or_rows(backend: MySQLBackend) -> None:
    assert await backend.write(one(S["bump"](id="a"))) == 1
    assert await backend.write(one(S["bump"](id="nobody"))) == 0
    assert await backend.write(one(S["same"](ids=["a", "b", "nobody"]))) == 2, "found rows, not changed rows"
    assert await backend.write(one(S["same"](ids=[]))) == 0
    assert await backend.read(one(S["n"](id="a")), bounded=True) == [(1,)]
    assert await backend.read(one(S["n"](id="nobody")), bounded=True) == []
    assert await backend.read(one(S["percent"](ids=["c", "a"])), bounded=True) == [("a",), ("c",)]
    ((event_id,),) = await backend.write(one(S["add"](item="a", name="x")))
    assert event_id == await backend.executor().fetchval("SELECT id FROM event")
    assert await backend.write(one(S["add"](item="a", name="x"))) == []


async def test_fenced_step_is_sent_in_one_packet(backend: MySQLBackend) -> None:
    packets: list[bytes] = []
    connection = await backend._pool.acquire()
    send = connection._execute_command

    async def spying(command: int, sql: bytes) -> None:
        packets.append(sql)
        await send(command, sql)

    connection._execute_command = spying
    backend._pool.release(connection)
    assert await backend.write(one(S["step"](id="a", token=1, name="x"))) == (1, [(1,)])
    assert await backend.write(one(S["step"](id="a", token=0, name="y"))) == (0, [])
    assert len(packets) == 2
    assert packets[0].startswith(b"BEGIN")
    assert packets[0].endswith(b"COMMIT")
    assert await backend.write(one(S["step"](id="a", token=1, name="x"))) == (1, [])
    assert packets[3:] == [b"COMMIT"], "after a duplicate the rest goes in one more packet"
    assert await count(backend) == 2


async def _alone(backend: MySQLBackend, call: Call) -> Any:
    return await backend.write(one(call))


async def _as_first(backend: MySQLBackend, call: Call) -> Any:
    return await backend.write(Work(lambda: several(call)))


async def _later(backend: MySQLBackend, call: Call) -> Any:
    return (await backend.write(Work(lambda: several(S["n"](id="a"), call))))[1]


async def _within(backend: MySQLBackend, call: Call) -> Any:
    storage = Transactions(backend)
    async with storage.transaction():
        return await storage._run(one(call))


ROADS = pytest.mark.parametrize("run", [_alone, _as_first, _later, _within])


@ROADS
async def test_ignored_duplicates_do_not_stop_the_packet(backend: MySQLBackend, run: Any) -> None:
    cases = [[], ["1"], ["2"], ["3"], ["1", "2"], ["2", "3"], ["1", "2", "3"]]
    for expected, taken in enumerate(cases, 1):
        await backend.executor().execute("DELETE FROM event")
        for name in taken:
            await backend.write(one(S["strict"](item="a", name=name)))
        first, second, bumped, rows, third = await run(backend, S["three"](item="a", one="1", two="2", three="3"))
        assert (first, bool(second), bumped, rows, third) == (
            "1" not in taken,
            "2" not in taken,
            1,
            [(expected,)],
            "3" not in taken,
        )
        assert await backend.executor().fetchval("SELECT COUNT(*) FROM event") == 3
        assert await count(backend) == expected


@ROADS
async def test_statement_that_fails_half_way_is_rolled_back(backend: MySQLBackend, run: Any) -> None:
    await backend.write(one(S["strict"](item="a", name="x")))
    thread = await backend.executor().fetchval("SELECT CONNECTION_ID()")
    with pytest.raises(StorageError, match="Duplicate entry") as raised:
        await run(backend, S["half"](item="a", name="x"))
    assert isinstance(raised.value.__cause__, asyncmy.errors.IntegrityError)
    assert await count(backend) == 0
    assert await backend.executor().fetchval("SELECT CONNECTION_ID()") == thread, "it is clean and was kept"


async def quiet_pool(backend: MySQLBackend) -> None:
    """No connection at rest has a transaction open."""
    for connection in backend._pool._idle:
        assert backend.reusable(connection)


async def test_transaction_stays_usable_after_a_refused_statement(backend: MySQLBackend) -> None:
    await backend.write(one(S["strict"](item="a", name="x")))
    storage = Transactions(backend)
    async with storage.transaction() as sql:
        await sql.execute("UPDATE item SET n = 5 WHERE id = %s", "b")
        for work in (
            one(S["half"](item="a", name="x")),
            Work(lambda: several(S["bump"](id="a"), S["strict"](item="a", name="x"))),
            one(S["strict"](item="a", name="x")),
        ):
            with pytest.raises(StorageError, match="Duplicate entry"):
                await storage._run(work)
        with pytest.raises(StorageError, match="Duplicate entry"):
            await sql.execute("INSERT INTO item (id) VALUES ('a')")
        assert await storage._run(one(S["bump"](id="c"))) == 1
    assert [await count(backend, item) for item in "abc"] == [0, 5, 1]


async def test_nested_transactions_are_savepoints(backend: MySQLBackend) -> None:
    storage = Transactions(backend)
    async with storage.transaction() as sql:
        await sql.execute("UPDATE item SET n = 1 WHERE id = 'a'")
        with pytest.raises(ZeroDivisionError):
            async with storage.transaction():
                await sql.execute("UPDATE item SET n = 2 WHERE id = 'a'")
                _ = 1 / 0
        async with storage.transaction():
            await sql.execute("UPDATE item SET n = 3 WHERE id = 'b'")
    assert [await count(backend, item) for item in "ab"] == [1, 3]
    await quiet_pool(backend)


async def test_transaction_left_open_by_caller_sql_is_not_reused(backend: MySQLBackend) -> None:
    for statement in ("BEGIN", "SET autocommit = 0"):
        await backend.executor().execute(statement)
        await backend.write(one(S["bump"](id="a")))
        async with opened(f"mysql://{backend_place(backend)}") as other:
            assert await count(other) > 0
        await backend.executor().execute("UPDATE item SET n = 0")


def backend_place(backend: MySQLBackend) -> str:
    (host, port), login = backend._hosts[0], backend._login
    return f"{login['user']}@{host}:{port}/{login['database']}"


async def test_exclusive_connection_raises_driver_errors(backend: MySQLBackend) -> None:
    async with backend.exclusive() as script:
        with pytest.raises(asyncmy.errors.MySQLError) as raised:
            await script.fetch("SELECT 1 FROM missing")
        assert raised.value.args[0] == 1146
        with pytest.raises(asyncmy.errors.MySQLError) as raised:
            await script.execute("INSERT INTO item (id) VALUES ('a')")
        assert raised.value.args[0] == 1062
        assert await script.fetch("SELECT '100%'") == [("100%",)]


# Errors.


@pytest.mark.parametrize(
    ("error", "fault", "kind"),
    [
        (asyncmy.errors.OperationalError(1213, "deadlock"), Fault.CONFLICT, DatabaseUnavailableError),
        (asyncmy.errors.OperationalError(1205, "lock wait"), Fault.CONFLICT, DatabaseUnavailableError),
        (asyncmy.errors.OperationalError(1020, "changed"), Fault.CONFLICT, DatabaseUnavailableError),
        (asyncmy.errors.OperationalError(1047, "not prepared"), Fault.CONFLICT, DatabaseUnavailableError),
        (asyncmy.errors.OperationalError(1467, "no number"), Fault.CONFLICT, DatabaseUnavailableError),
        (asyncmy.errors.OperationalError(2013, "lost"), Fault.LOST, DatabaseUnavailableError),
        (asyncmy.errors.OperationalError(2006, "gone"), Fault.LOST, DatabaseUnavailableError),
        (asyncmy.errors.OperationalError(1053, "shutdown"), Fault.LOST, DatabaseUnavailableError),
        (asyncmy.errors.OperationalError(1927, "killed"), Fault.LOST, DatabaseUnavailableError),
        (asyncmy.errors.InterfaceError(0, "Not connected"), Fault.LOST, DatabaseUnavailableError),
        (asyncmy.errors.InternalError("Packet sequence number wrong"), Fault.LOST, DatabaseUnavailableError),
        (ConnectionResetError(104, "reset"), Fault.LOST, DatabaseUnavailableError),
        (asyncio.IncompleteReadError(b"", 4), Fault.LOST, DatabaseUnavailableError),
        (asyncmy.errors.ProgrammingError(1146, "no table"), Fault.REFUSED, SchemaError),
        (asyncmy.errors.OperationalError(1054, "no column"), Fault.REFUSED, SchemaError),
        (asyncmy.errors.OperationalError(1290, "read only"), Fault.REFUSED, DatabaseUnavailableError),
        (asyncmy.errors.OperationalError(1792, "read only"), Fault.REFUSED, DatabaseUnavailableError),
        (asyncmy.errors.OperationalError(1836, "read only"), Fault.REFUSED, DatabaseUnavailableError),
        (asyncmy.errors.OperationalError(1114, "full"), Fault.REFUSED, DatabaseUnavailableError),
        (asyncmy.errors.OperationalError(1021, "full"), Fault.REFUSED, DatabaseUnavailableError),
        (asyncmy.errors.InternalError(126, "damaged: '#sql-update-1.MAI'"), Fault.REFUSED, DatabaseUnavailableError),
        (asyncmy.errors.InternalError(126, "damaged: 'item'"), Fault.REFUSED, StorageError),
        (asyncmy.errors.OperationalError(1040, "many"), Fault.REFUSED, DatabaseUnavailableError),
        (asyncmy.errors.ProgrammingError(1064, "syntax"), Fault.REFUSED, StorageError),
        (KeyError(1213), Fault.REFUSED, StorageError),
    ],
)
def test_driver_errors_are_classified_and_translated(error: Exception, fault: Fault, kind: type[StorageError]) -> None:
    backend = MySQLBackend("mysql://root@127.0.0.1/test")
    assert backend.fault(error) is fault
    assert type(backend.translate(error)) is kind


@pytest.mark.parametrize(
    ("codes", "text"),
    [
        ((1045, 1698), "wrong password"),
        ((1044, 1049), "has no database 'd' that user 'u' may use"),
        ((1130, 1251, 1862, 2059, 3118), "rejected the login of user 'u'"),
        ((1040, 1203, 1226), "has no free connection"),
        ((2003,), "cannot be reached"),
    ],
)
def test_error_for_a_failed_connection_says_what_to_change(codes: tuple[int, ...], text: str) -> None:
    for code in codes:
        error = connection_error(
            asyncmy.errors.OperationalError(code, "no"), "MySQL", {"user": "u", "database": "d"}, 5
        )
        assert text in str(error)


@pytest.mark.parametrize(
    "code",
    [
        *(ER.SERVER_SHUTDOWN, ER.SHUTDOWN_COMPLETE, ER.FORCING_CLOSE, ER.ABORTING_CONNECTION),
        *(ER.NEW_ABORTING_CONNECTION, ER.NET_READ_ERROR, ER.NET_READ_INTERRUPTED, ER.NET_ERROR_ON_WRITE),
        *(ER.NET_WRITE_INTERRUPTED, ER.ERROR_DURING_COMMIT),
        *(1927, 3169, 4031),  # the connection was killed (MariaDB, MySQL), or idle for too long
    ],
)
def test_session_ended_by_the_server_is_lost(code: int) -> None:
    """It is then unknown whether a commit took effect; for any other error, it did not."""
    backend = MySQLBackend("mysql://root@127.0.0.1/test")
    assert backend.fault(asyncmy.errors.OperationalError(code, "ended")) is Fault.LOST


async def test_missing_table_error_says_to_call_initialize(backend: MySQLBackend) -> None:
    with pytest.raises(SchemaError, match=r"call initialize\(\)") as raised:
        await backend.read(one(S["nowhere"]()), bounded=True)
    assert isinstance(raised.value.__cause__, asyncmy.errors.ProgrammingError)


async def test_write_to_a_read_only_server_is_unavailable(own_server: MySQLServer) -> None:
    async with opened(own_server.url) as admin:
        await make_tables(admin)
        await admin.executor().execute("CREATE USER reader")
        await admin.executor().execute("GRANT ALL ON test.* TO reader")
        await admin.executor().execute("SET GLOBAL read_only = 1")
        try:
            async with opened(own_server.url.replace("root@", "reader@")) as backend:
                with pytest.raises(DatabaseUnavailableError, match="accepts no writes"):
                    await backend.write(one(S["bump"](id="a")))
                await admin.executor().execute("SET GLOBAL read_only = 0")
                assert await backend.write(one(S["bump"](id="a"))) == 1
        finally:
            await admin.executor().execute("SET GLOBAL read_only = 0")
            await admin.executor().execute("DROP TABLE item, event")


# Conflicts.


async def deadlocked(backend: MySQLBackend) -> tuple[Any, Any]:
    """Two transactions, of which the database rolls back one: that one and the other."""
    one_, two = await backend.begin(), await backend.begin()
    await one_.execute("UPDATE item SET n = n + 1 WHERE id = 'a'")
    await two.execute("UPDATE item SET n = n + 1 WHERE id = 'b'")
    waiting = asyncio.ensure_future(one_.execute("UPDATE item SET n = n + 1 WHERE id = 'b'"))
    await blocked(backend)
    try:
        await two.execute("UPDATE item SET n = n + 1 WHERE id = 'a'")
    except TransactionConflictError:
        await waiting
        return two, one_
    with pytest.raises(TransactionConflictError):
        await waiting
    return one_, two


async def test_transaction_is_unusable_after_a_deadlock(backend: MySQLBackend) -> None:
    victim, survivor = await deadlocked(backend)
    for attempt in (
        victim.execute("UPDATE item SET n = 99"),  # would be committed separately: the server has no transaction left
        victim.fetch("SELECT 1"),
        victim.operate(one(S["bump"](id="c"))),
        victim.savepoint(1),
        victim.commit(),
    ):
        with pytest.raises(TransactionConflictError):
            await attempt
    await survivor.commit()
    assert [await count(backend, item) for item in "abc"] == [1, 1, 0]
    await quiet_pool(backend)


async def test_deadlock_on_an_auto_increment_value_ends_the_transaction(backend: MySQLBackend) -> None:
    """The error is 1467 where such values are locked; the server still reports an open transaction then."""
    heavy, victim = await backend.begin(), await backend.begin()
    await heavy.execute("INSERT INTO item (id) VALUES " + ", ".join(f"('heavy {n}')" for n in range(300)))
    await victim.execute("INSERT INTO item (id) VALUES ('before')")
    await victim.execute("UPDATE item SET n = n + 1 WHERE id = 'b'")
    draw = "INSERT INTO event (item, name) SELECT id, 'drawn' FROM item WHERE id IN ('a', 'b') ORDER BY id FOR UPDATE"
    waiting = asyncio.ensure_future(heavy.execute(draw))
    await blocked(backend)
    locked = await backend.executor().fetchval("SELECT @@innodb_autoinc_lock_mode") != 2
    try:
        await victim.execute("INSERT INTO event (item, name) SELECT 'c', 'mine'")
        assert not locked
    except TransactionConflictError:
        for attempt in (victim.execute("INSERT INTO item (id) VALUES ('after')"), victim.commit()):
            with pytest.raises(TransactionConflictError):
                await attempt
    else:
        await victim.rollback()
    await waiting
    await heavy.rollback()
    assert await backend.executor().fetchval("SELECT COUNT(*) FROM item") == 3
    await quiet_pool(backend)


async def test_operation_is_retried_after_a_deadlock(backend: MySQLBackend) -> None:
    runs = 0

    def swap(first: str, second: str) -> Operation[None]:
        nonlocal runs
        runs += 1
        yield S["bump"](id=first)
        yield S["bump"](id=second)

    async def writer(first: str, second: str) -> None:
        for _ in range(40):
            await backend.write(Work(lambda: swap(first, second)))

    await asyncio.gather(writer("a", "b"), writer("b", "a"), writer("a", "b"), writer("b", "a"))
    assert await count(backend, "a") == await count(backend, "b") == 160
    assert runs > 160, "there was a deadlock"


async def test_lock_wait_timeout_is_a_transaction_conflict(
    fresh_mysql_db: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        mysql, "_SESSION", (*mysql._SESSION[:1], "SET innodb_lock_wait_timeout = 1", *mysql._SESSION[1:])
    )
    async with opened(fresh_mysql_db) as backend:
        await make_tables(backend)
        holder, other = await backend.begin(), await backend.begin()
        await holder.execute("UPDATE item SET n = n + 1 WHERE id = 'a'")
        writing = asyncio.ensure_future(backend.write(one(S["bump"](id="a"))))
        with pytest.raises(TransactionConflictError):
            await other.execute("UPDATE item SET n = n + 1 WHERE id = 'a'")
        await other.rollback()
        assert not writing.done(), "it has timed out too by now, or will, and tries again"
        await holder.commit()
        assert await writing == 1
        assert await count(backend) == 2


# Cancellation.


async def test_cancelled_query_does_not_keep_waiting_for_its_lock(backend: MySQLBackend) -> None:
    holder = await backend.begin()
    await holder.execute("UPDATE item SET n = n + 1 WHERE id = 'a'")
    works = [
        one(S["bump"](id="a")),
        one(S["step"](id="a", token=1, name="x")),
        Work(lambda: several(S["bump"](id="b"), S["bump"](id="a"))),
    ]
    for work in works:
        waiting = asyncio.ensure_future(backend.write(work))
        await blocked(backend)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await asyncio.wait_for(until(lambda: no_session_waits(backend)), 8)  # otherwise it would wait for 10 s
    await holder.commit()
    assert await backend.write(one(S["bump"](id="b"))) == 1
    assert [await count(backend, item) for item in "ab"] == [1, 1]


async def test_connection_lost_during_a_statement_keeps_no_locks(backend: MySQLBackend) -> None:
    """The server notices only when the statement has ended."""
    session = await backend.begin()
    await session.execute("UPDATE item SET n = n + 1 WHERE id = 'a'")
    sleeping = asyncio.ensure_future(session.execute("DO SLEEP(60)"))
    query = "SELECT COUNT(*) FROM information_schema.processlist WHERE db = DATABASE() AND info LIKE 'DO SLEEP%'"
    await until(lambda: backend.executor().fetchval(query))
    assert session._connection is not None
    session._connection._transport.abort()
    with pytest.raises(DatabaseUnavailableError):
        await sleeping
    await session.rollback()
    assert await asyncio.wait_for(backend.write(one(S["bump"](id="a"))), 3) == 1  # MariaDB itself looks every 5 s
    assert await count(backend, "a") == 1


async def test_killing_a_cancelled_query_is_retried(backend: MySQLBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    """They hold locks, and no connection may be free just then."""
    holder = await backend.begin()
    await holder.execute("UPDATE item SET n = n + 1 WHERE id = 'a'")
    waiting = asyncio.ensure_future(backend.write(one(S["bump"](id="a"))))
    await blocked(backend)
    connect, refusals = backend.connect, iter([DatabaseUnavailableError("no free connection")] * 3)

    async def connect_later() -> Any:
        if (refusal := next(refusals, None)) is not None:
            raise refusal
        return await connect()

    monkeypatch.setattr(backend, "connect", connect_later)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await asyncio.wait_for(until(lambda: no_session_waits(backend)), 6)
    assert next(refusals, None) is None
    await holder.commit()


async def no_session_waits(backend: MySQLBackend) -> bool:
    query = "SELECT COUNT(*) FROM information_schema.processlist WHERE db = DATABASE() AND info LIKE 'UPDATE%'"
    return bool(await backend.executor().fetchval(query) == 0)


async def test_cancellation_at_any_point_leaves_no_open_transaction(fresh_mysql_db: str) -> None:
    async with opened(fresh_mysql_db, pool_size=2) as backend:
        await make_tables(backend)
        storage, chance = Transactions(backend), random.Random(7)
        acknowledged = 0

        async def nested(name: str) -> None:
            async with storage.transaction() as sql:
                await sql.execute("UPDATE item SET n = n + 1 WHERE id = 'a'")
                async with storage.transaction():
                    await storage._run(one(S["add"](item="a", name=name)))

        def pair(name: str) -> Operation[None]:
            yield S["bump"](id="a")
            yield S["add"](item="a", name=name)

        async def one_of_them(number: int) -> None:
            nonlocal acknowledged
            name = str(number)
            if number % 3 == 0:
                await nested(name)
            elif number % 3 == 1:
                await backend.write(Work(lambda: pair(name)))
            else:
                await backend.write(one(S["step"](id="a", token=1, name=name)))
            acknowledged += 1

        for burst in range(100):
            tasks = [asyncio.ensure_future(one_of_them(burst * 4 + number)) for number in range(4)]
            for task in tasks:
                for _ in range(chance.randrange(8)):
                    await asyncio.sleep(0)
                if chance.random() < 0.3:
                    await asyncio.sleep(chance.random() * 0.003)
                task.cancel()
            outcomes = await asyncio.gather(*tasks, return_exceptions=True)
            assert all(outcome is None or isinstance(outcome, asyncio.CancelledError) for outcome in outcomes), outcomes
        assert backend._pool._size <= 2
        await quiet(fresh_mysql_db)
        assert await asyncio.gather(*(backend.write(one(S["bump"](id="b"))) for _ in range(8))) == [1] * 8
        events = await backend.executor().fetchval("SELECT COUNT(*) FROM event")
        assert await count(backend) == events >= acknowledged, "no half of a transaction"


# Lost connections.


class Wire:
    """One connection through the proxy."""

    def __init__(self, up: asyncio.StreamWriter, down: asyncio.StreamWriter, *, stalled: bool) -> None:
        self.up, self.down, self.stalled, self.doomed = up, down, stalled, False
        self.lost = b""

    def cut(self) -> None:
        self.up.transport.abort()
        self.down.transport.abort()


def is_whole(answer: bytes) -> bool:
    """Whether these are all results of a packet of writes: the status of the last says that there are no more."""
    status = 8
    while len(answer) > 4:
        length = 4 + int.from_bytes(answer[:3], "little")
        status, answer = answer[7], answer[length:]  # after 0, rows and id of one byte each
    return not status & 8


class Proxy:
    """A wire to the server that can be cut, stall, or lose an answer."""

    def __init__(self, url: str) -> None:
        self._target = urlsplit(url)
        self._tasks: set[asyncio.Task[None]] = set()
        self.wires: list[Wire] = []
        self.unresponsive = False  # new connections are accepted but never served
        self.swallow: bytes | None = (
            None  # the next packet with this goes through, but the wire is cut before its answer
        )

    async def __aenter__(self) -> "Proxy":
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        self.url = self._target._replace(netloc=f"root@127.0.0.1:{port}").geturl()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        self.cut()
        await asyncio.gather(*self._tasks)

    def cut(self) -> None:
        for wire in self.wires:
            wire.cut()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream, up = await asyncio.open_connection(self._target.hostname, self._target.port)
        wire = Wire(up, writer, stalled=self.unresponsive)
        self.wires.append(wire)
        self._tasks.add(asyncio.ensure_future(self._send(reader, wire)))
        self._tasks.add(asyncio.ensure_future(self._answer(upstream, wire)))

    async def _send(self, source: asyncio.StreamReader, wire: Wire) -> None:
        with suppress(ConnectionError):
            while data := await source.read(1 << 16):
                if self.swallow and self.swallow in data:
                    self.swallow, wire.doomed = None, True
                if not wire.stalled:
                    wire.up.write(data)
        wire.up.close()

    async def _answer(self, source: asyncio.StreamReader, wire: Wire) -> None:
        with suppress(ConnectionError):
            while data := await source.read(1 << 16):
                if wire.doomed:
                    wire.lost += data
                    if is_whole(wire.lost):
                        wire.cut()
                elif not wire.stalled:
                    wire.down.write(data)
        wire.down.close()


@pytest.fixture
async def wire(fresh_mysql_db: str) -> AsyncIterator[tuple[Proxy, MySQLBackend]]:
    async with Proxy(fresh_mysql_db) as proxy, opened(proxy.url + "?read_timeout=0.4", pool_size=1) as backend:
        await make_tables(backend)
        yield proxy, backend


async def test_idle_connection_that_was_lost_is_replaced(wire: tuple[Proxy, MySQLBackend]) -> None:
    proxy, backend = wire
    assert await backend.write(one(S["bump"](id="a"))) == 1
    connection = backend._pool._idle[-1]
    proxy.cut()
    await until(lambda: at_end(connection))
    assert await backend.write(one(S["bump"](id="a"))) == 1
    assert await count(backend) == 2


async def at_end(connection: Any) -> bool:
    return bool(connection._proto.eof)


async def test_commit_with_a_lost_reply_is_confirmed_and_not_repeated(wire: tuple[Proxy, MySQLBackend]) -> None:
    proxy, backend = wire
    proxy.swallow = b";COMMIT"
    step = S["step"](id="a", token=1, name="x")
    assert await backend.write(one(step, confirm=lambda: several(S["n"](id="a")))) == [(1,)], "it is there"
    proxy.swallow = b";COMMIT"
    with pytest.raises(CommitUnknownError):
        await backend.write(one(S["step"](id="b", token=1, name="x")))
    assert await count(backend, "b") == 1


async def test_acknowledged_statement_is_not_repeated_after_a_later_lost_reply(
    wire: tuple[Proxy, MySQLBackend],
) -> None:
    proxy, backend = wire
    proxy.swallow = b"SELECT n"
    with pytest.raises(CommitUnknownError):
        await backend.write(Work(lambda: several(S["bump"](id="a"), S["n"](id="a")), single=True))
    assert await count(backend) == 1


async def test_transaction_commit_with_a_lost_reply_is_unknown(wire: tuple[Proxy, MySQLBackend]) -> None:
    proxy, backend = wire
    proxy.swallow = b"\x03COMMIT"
    with pytest.raises(CommitUnknownError):
        async with Transactions(backend).transaction() as sql:
            await sql.execute("UPDATE item SET n = 7 WHERE id = 'a'")
    assert await count(backend) == 7


@pytest.mark.parametrize(("options", "counted"), [({}, 1), ({"single": True, "repeat": True}, 2)])
async def test_uncommitted_or_repeatable_work_is_retried(
    wire: tuple[Proxy, MySQLBackend], options: dict[str, bool], counted: int
) -> None:
    proxy, backend = wire
    proxy.swallow = b"UPDATE item"
    work: Work[Any] = Work(lambda: several(S["bump"](id="a")), **options)  # type: ignore[arg-type]
    assert await backend.write(work) == 1
    assert await count(backend) == counted


async def test_stalled_connection_times_out(wire: tuple[Proxy, MySQLBackend]) -> None:
    proxy, backend = wire
    for stalled in proxy.wires:
        stalled.stalled = True
    with pytest.raises(CommitUnknownError):
        await backend.write(one(S["bump"](id="a")))
    assert await backend.write(one(S["bump"](id="a"))) == 1
    assert await count(backend) == 1


async def test_killed_session_raises_and_writes_nothing(backend: MySQLBackend) -> None:
    session = await backend.begin()
    await session.execute("UPDATE item SET n = n + 1 WHERE id = 'a'")
    thread = await session.fetchval("SELECT CONNECTION_ID()")
    await backend.executor().execute(f"KILL {thread}")
    for attempt in (
        session.execute("UPDATE item SET n = 9"),
        session.operate(one(S["bump"](id="b"))),
        session.commit(),
    ):
        with pytest.raises(DatabaseUnavailableError):
            await attempt
    assert [await count(backend, item) for item in "ab"] == [0, 0]
    await quiet_pool(backend)


async def test_server_crash_under_load_loses_no_acknowledged_write(own_server: MySQLServer) -> None:
    async with opened(own_server.url, pool_size=4) as backend:
        await make_tables(backend)
        acknowledged, unknown, stop = 0, 0, asyncio.Event()

        async def worker(number: int) -> None:
            nonlocal acknowledged, unknown
            step = 0
            while not stop.is_set():
                step += 1
                try:
                    await backend.write(one(S["step"](id="abc"[number % 3], token=1, name=f"{number}-{step}")))
                    acknowledged += 1
                except CommitUnknownError:
                    unknown += 1

        async def some_more() -> None:
            goal = acknowledged + 100

            async def reached() -> bool:
                return acknowledged >= goal

            await until(reached)

        workers = [asyncio.ensure_future(worker(number)) for number in range(6)]
        await some_more()
        await asyncio.to_thread(own_server.kill)
        await asyncio.to_thread(own_server.start)
        await some_more()
        await asyncio.to_thread(own_server.restart)
        await some_more()
        stop.set()
        await asyncio.gather(*workers)
        events = await backend.executor().fetchval("SELECT COUNT(*) FROM event")
        assert acknowledged <= events <= acknowledged + unknown
        assert await backend.executor().fetchval("SELECT SUM(n) FROM item") == events
        await backend.executor().execute("DROP TABLE item, event")


# Wake-ups.


async def test_polling_backs_off_when_idle_and_a_nudge_resets_it(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    timeout = asyncio.timeout

    def at_once(pause: float) -> asyncio.Timeout:
        pauses.append(pause)
        return timeout(0)

    monkeypatch.setattr(asyncio, "timeout", at_once)
    monkeypatch.setattr(pacing, "monotonic", lambda: sum(pauses))
    backend = MySQLBackend("mysql://root@127.0.0.1/test")
    hints = backend.wakeups()
    for _ in range(50):
        assert (await anext(hints)).kind == "scan"
    assert pauses[:5] == [polling.SHORTEST_SEC] * 5
    assert pauses == sorted(pauses)
    assert pauses[-3:] == [polling.LONGEST_SEC] * 3
    backend.notifier.trail("workflow_resumable")
    await anext(hints)
    await anext(hints)
    assert pauses[-2:] == [polling.LONGEST_SEC, polling.SHORTEST_SEC]
    await hints.aclose()  # type: ignore[attr-defined]
    assert not backend._polling._listeners
    assert polling.LONGEST_SEC >= 0.5, "at most two looks a second when idle"


async def test_nudge_wakes_a_waiting_poller_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pacing.Pace, "pause", lambda pace: 3600.0)
    backend = MySQLBackend("mysql://root@127.0.0.1/test")
    hints, loop = backend.wakeups(), asyncio.get_running_loop()
    await anext(hints)
    waiting, start = asyncio.ensure_future(anext(hints)), loop.time()
    await asyncio.sleep(0)
    backend._polling.nudge()
    await waiting
    assert loop.time() - start < 30
    await hints.aclose()  # type: ignore[attr-defined]
