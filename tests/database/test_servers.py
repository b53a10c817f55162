"""The temporary servers: life cycle, settings, and that none outlives its test run."""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack, suppress
from pathlib import Path

import asyncmy
import asyncpg
import pytest

from perdure.testing.servers import MySQLServer, PgBouncer, PostgresServer, Server, ServerError
from tests.support.databases import connect_mysql, fetch_mysql, fresh_mysql, fresh_postgres

every_database = pytest.mark.parametrize("kind", [PostgresServer, MySQLServer])


async def fetchval(url: str, statement: str) -> object:
    if url.startswith("mysql:"):
        async with connect_mysql(url) as connection:
            rows = await fetch_mysql(connection, statement)
            return rows[0][0] if rows else None
    postgres = await asyncpg.connect(url, statement_cache_size=0)
    try:
        return await postgres.fetchval(statement)
    finally:
        await postgres.close()


def wait_until(condition: Callable[[], bool], timeout_sec: float = 10.0) -> bool:
    deadline = time.monotonic() + timeout_sec
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def is_running(pid: int) -> bool:
    with suppress(ProcessLookupError, FileNotFoundError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


@every_database
class TestLifeCycle:
    async def test_kill_and_restart_keep_data_and_address_until_stop(self, kind: type[Server]) -> None:
        with kind() as server:
            home, url, pids = server.home, server.url, {server.pid}
            await fetchval(url, "CREATE TABLE kept (id int)")
            await fetchval(url, "INSERT INTO kept VALUES (1)")
            server.kill()
            assert server.pid is None
            with pytest.raises((OSError, asyncmy.errors.OperationalError)):
                await fetchval(url, "SELECT 1")
            server.start()
            await fetchval(url, "INSERT INTO kept VALUES (2)")
            pids.add(server.pid)
            server.restart()
            pids.add(server.pid)
            assert await fetchval(url, "SELECT count(*) FROM kept") == 2
            assert server.url == url
            assert len(pids) == 3
        assert server.pid is None
        assert not home.exists()
        server.stop()  # harmless

    def test_servers_outlive_the_threads_that_start_them(self, kind: type[Server]) -> None:
        one, other = kind(), kind()
        threads = [threading.Thread(target=server.start) for server in (one, other)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        with ExitStack() as stack:
            stack.callback(one.stop)
            stack.callback(other.stop)
            assert one.port != other.port
            assert one.home != other.home
            with pytest.raises(ServerError, match="already running"):
                one.start()
            assert not wait_until(lambda: one.pid is None or other.pid is None, timeout_sec=0.3)

    def test_a_failed_start_shows_the_log_and_leaves_nothing(self, kind: type[Server]) -> None:
        server = kind({"no_such_setting": 1})
        with pytest.raises(ServerError, match="no_such_setting"):
            server.start()
        assert server.pid is None
        assert not server.home.exists()

    def test_a_missing_program_names_its_package(self, kind: type[Server], monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
        with pytest.raises(ServerError, match=r"apt-get install (postgresql|mariadb-server)"):
            kind().start()

    def test_server_starts_despite_a_private_and_deep_temporary_directory(
        self, kind: type[Server], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        deep = tmp_path / ("x" * 120)
        deep.mkdir(mode=0o700)
        monkeypatch.setenv("TMPDIR", str(deep))
        monkeypatch.setattr(tempfile, "tempdir", str(deep))
        with kind() as server:
            assert server.pid is not None

    async def test_later_servers_start_with_a_copy_of_the_data_that_the_first_created(
        self, kind: type[Server], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
        created: list[Server] = []
        run = Server._run

        def counting(server: Server, command: Sequence[str | Path]) -> None:
            created.append(server)
            run(server, command)

        monkeypatch.setattr(Server, "_run", counting)
        with kind() as first:
            await fetchval(first.url, "CREATE TABLE mine (id int)")
        with kind() as second:
            await fetchval(second.url, "CREATE TABLE mine (id int)")
        assert created == [first]
        (archive,) = tmp_path.glob("perdure-servers-*/*")
        archive.write_bytes(b"no archive" * 1000)
        with pytest.raises(ServerError, match="could not be unpacked, and was deleted"):
            kind().start()
        assert not archive.exists()
        archive.parent.chmod(0o777)
        with kind() as third:
            assert created == [first, third]
        assert not archive.exists(), "others could replace it"


POSTGRES_SETTINGS = "SELECT concat_ws(' ', {})".format(
    ", ".join(f"current_setting('{name}')" for name in ("timezone", "max_connections", "fsync"))
)
MYSQL_SETTINGS = """SELECT concat_ws(' ', timediff(now(), utc_timestamp()), @@max_connections,
    @@innodb_flush_log_at_trx_commit)"""


@pytest.mark.parametrize(
    ("server", "question", "answer"),
    [
        (PostgresServer({"timezone": "Asia/Tokyo"}), POSTGRES_SETTINGS, "Asia/Tokyo 200 off"),
        (PostgresServer({"timezone": "UTC", "max_connections": 17}, durable=True), POSTGRES_SETTINGS, "UTC 17 on"),
        (MySQLServer({"default_time_zone": "+09:00"}), MYSQL_SETTINGS, "09:00:00 200 2"),
        (MySQLServer({"default_time_zone": "-03:00"}, durable=True), MYSQL_SETTINGS, "-03:00:00 151 1"),
    ],
    ids=["postgres", "postgres-durable", "mysql", "mysql-durable"],
)
async def test_server_settings_are_applied(server: Server, question: str, answer: str) -> None:
    with server:
        assert await fetchval(server.url, question) == answer
        assert not (server.durable and server.home.is_relative_to("/dev/shm"))


class TestPgBouncer:
    BACKEND = "SELECT pg_backend_pid()"
    TURNS = 20  # of one client, in which another would get its turn if it could

    async def test_transaction_mode_shares_one_backend_between_transactions(self, postgres_url: str) -> None:
        with PgBouncer(postgres_url, settings={"default_pool_size": 1}) as pooler:
            one = await asyncpg.connect(pooler.url, statement_cache_size=0)
            other = await asyncpg.connect(pooler.url, statement_cache_size=0)
            backend = await one.fetchval(self.BACKEND)
            assert await other.fetchval(self.BACKEND) == backend
            async with one.transaction():
                waiting = asyncio.ensure_future(other.fetchval(self.BACKEND))
                for _ in range(self.TURNS):
                    assert await one.fetchval(self.BACKEND) == backend
                assert not waiting.done()
            assert await waiting == backend
            await one.close()
            await other.close()

    async def test_session_mode_keeps_the_backend(self, postgres_url: str) -> None:
        with PgBouncer(postgres_url, "session", {"default_pool_size": 1}) as pooler:
            one = await asyncpg.connect(pooler.url, statement_cache_size=0)
            await one.fetchval(self.BACKEND)
            other = await asyncpg.connect(pooler.url, statement_cache_size=0)
            waiting = asyncio.ensure_future(other.fetchval(self.BACKEND))
            for _ in range(self.TURNS):
                await one.fetchval(self.BACKEND)
            assert not waiting.done()
            await one.close()
            assert await waiting
            await other.close()

    async def test_pooler_survives_restarts_of_itself_and_the_server(self, postgres_server: PostgresServer) -> None:
        with PgBouncer(postgres_server) as pooler:
            pooler.kill()
            pooler.start()
            assert await fetchval(pooler.url, "SELECT 1") == 1
            postgres_server.restart()
            pooler.restart()
            assert await fetchval(pooler.url, "SELECT 1") == 1


PARENT = """
import signal
from perdure.testing.servers import MySQLServer, PgBouncer, PostgresServer
postgres = PostgresServer().start()
started = [postgres, PgBouncer(postgres).start(), MySQLServer().start()]
for server in started:
    print(server.pid, server.home, flush=True)
signal.pause()
"""


class TestDeathOfTheParent:
    @pytest.fixture
    def parent(self) -> Iterator["subprocess.Popen[str]"]:
        with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True) as process:
            yield process
            process.kill()

    def test_servers_end_with_their_parent_and_directories_are_removed_later(
        self, parent: "subprocess.Popen[str]", postgres_url: str
    ) -> None:
        assert parent.stdout is not None
        started = [parent.stdout.readline().split() for _ in range(3)]
        pids = [int(pid) for pid, _ in started]
        homes = [Path(home) for _, home in started]
        backends = [int(pid) for pid in _children(pids[0])]
        assert backends
        assert all(map(is_running, [*pids, *backends]))

        self._start_another(postgres_url, homes)
        assert all(home.exists() for home in homes), "a living owner holds the lock"

        os.kill(parent.pid, signal.SIGKILL)
        assert wait_until(lambda: not any(map(is_running, [*pids, *backends])))

        # Another process that starts a server may be removing them, too: then each leaves what the other has locked.
        for _ in range(50):
            self._start_another(postgres_url, homes)
            if wait_until(lambda: not any(home.exists() for home in homes), 1.0):
                break
        assert not any(home.exists() for home in homes)

    @staticmethod
    def _start_another(postgres_url: str, homes: list[Path]) -> None:
        for home in homes:
            os.utime(home, (0, 0))  # only old directories are looked at
        with PgBouncer(postgres_url):
            pass


def _children(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


class TestFreshDatabases:
    async def test_postgres_database_is_dropped_despite_an_open_transaction(self, postgres_url: str) -> None:
        async with fresh_postgres(postgres_url) as url:
            name = await fetchval(url, "SELECT current_database()")
            forgotten = await asyncpg.connect(url)
            await forgotten.execute("CREATE TABLE held (id int)")
            await forgotten.execute("BEGIN")
            await forgotten.execute("INSERT INTO held VALUES (1)")
        assert await fetchval(postgres_url, f"SELECT count(*) FROM pg_database WHERE datname = '{name}'") == 0
        with suppress(OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
            await forgotten.close()

    async def test_mysql_database_is_dropped_despite_an_open_transaction(self, mysql_url: str) -> None:
        async with AsyncExitStack() as outlives:
            async with fresh_mysql(mysql_url) as url:
                name = await fetchval(url, "SELECT database()")
                forgotten = await outlives.enter_async_context(connect_mysql(url))
                await fetch_mysql(forgotten, "CREATE TABLE held (id int)")
                await fetch_mysql(forgotten, "BEGIN")
                await fetch_mysql(forgotten, "INSERT INTO held VALUES (1)")
            assert await fetchval(mysql_url, f"SHOW DATABASES LIKE '{name}'") is None

    async def test_fixture_databases_are_empty_and_distinct(self, fresh_postgres_db: str, fresh_mysql_db: str) -> None:
        tables = "SELECT count(*) FROM information_schema.tables WHERE table_schema = "
        assert await fetchval(fresh_postgres_db, f"{tables} 'public'") == 0
        assert await fetchval(fresh_mysql_db, f"{tables} database()") == 0
