"""A primary and one standby that every commit waits for: the least that can fail over, and quick to start."""

import asyncio
from contextlib import ExitStack
from typing import Any, Self

import asyncpg
import pymysql
from pymysql.cursors import DictCursor

from perdure.testing.servers import HOST, MySQLServer, PostgresServer, Server, _find
from tests.chaos.clusters import DATABASE, Death, wait_for
from tests.engine.crashes.rig.databases import USER
from tests.support.databases import named_database


class _Pair:
    """What both kinds have in common."""

    nodes: list[Server]

    def __init__(self) -> None:
        self._stack = ExitStack()

    @property
    def hosts(self) -> str:
        return ",".join(f"{HOST}:{node.port}" for node in self.nodes)

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            for node in self.nodes:
                stack.enter_context(node)
            self._settle()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def wake(self) -> None:
        """None of them is silent: a pair has no monitor, which could demote a server that comes back."""

    def _settle(self) -> None:
        """What is left to do once both are running."""


class _Standby(PostgresServer):
    """Streams from another server, and starts with a copy of its data."""

    def __init__(self, primary: PostgresServer) -> None:
        super().__init__()
        self._primary = primary

    def _create(self) -> None:
        source = f"--dbname=host={HOST} port={self._primary.port} user=perdure"
        options = ["--write-recovery-conf", "--checkpoint=fast", "--no-sync"]
        self._run([self._tool("pg_basebackup"), source, f"--pgdata={self.home}/data", *options])

    def promote(self) -> None:
        self._run([self._tool("pg_ctl"), "promote", "--pgdata=data"])

    def stop_receiving(self) -> None:
        """From now on nothing that is committed comes here."""
        for statement in ("ALTER SYSTEM SET primary_conninfo = ''", "SELECT pg_reload_conf()"):
            _fetch(self.url, statement)
        wait_for(lambda: not _fetch(self.url, "SELECT 1 FROM pg_stat_wal_receiver"), "the stream to end")

    @staticmethod
    def _tool(name: str) -> str:
        return str(_find("postgres", package="postgresql").with_name(name))


class PostgresPair(_Pair):
    """Synchronous streaming replication; the standby is promoted by hand, and the dead stay dead."""

    waited_for = "*"

    def __init__(self) -> None:
        super().__init__()
        self._primary = PostgresServer({"synchronous_standby_names": self.waited_for})
        self._standby = _Standby(self._primary)
        self.nodes = [self._primary, self._standby]

    @property
    def url(self) -> str:
        return f"postgresql://perdure@{self.hosts}/{DATABASE}?target_session_attrs=read-write"

    def _settle(self) -> None:
        asyncio.run(named_database(self._primary.url, DATABASE))

    def kill_primary(self, death: Death) -> None:
        self._primary.kill()

    def replace(self) -> None:
        self._standby.promote()

    def heal(self) -> None:
        return


class CarelessPair(PostgresPair):
    """Asynchronous replication: commits don't wait for a standby, and a standby that fell behind is promoted, too."""

    waited_for = ""

    def fall_behind(self) -> None:
        """What is acknowledged from now on is lost with the primary."""
        self._standby.stop_receiving()


class _Replicated(MySQLServer):
    """Writes down what it does for others; the second starts with a copy of the first one's data."""

    def __init__(self, number: int, model: "_Replicated | None" = None) -> None:
        log = {"log_bin": "bin", "server_id": number, "binlog_format": "ROW", "log_slave_updates": 1, "sync_binlog": 0}
        sync = {"rpl_semi_sync_slave_enabled": 1, "rpl_semi_sync_master_wait_point": "AFTER_SYNC"}
        super().__init__({**log, **sync, "read_only": 1})
        self._model = model

    def _create(self) -> None:
        if self._model is None:
            super()._create()
            users = (self.home / "init.sql").read_text()
            self._write("init.sql", f"SET sql_log_bin = 0;\n{users}")  # each has its own, and they are alike
            self._run(["/bin/cp", "-a", "data/.", "tmp/model"])
        else:
            self._run(["/bin/cp", "-a", f"{self._model.home}/tmp/model/.", "data"])
            self._write("init.sql", (self._model.home / "init.sql").read_text())

    def ask(self, statement: str) -> list[dict[str, Any]]:
        """Run a statement as root, who may write everywhere."""
        connection = pymysql.connect(host=HOST, port=self.port, user="root", cursorclass=DictCursor)
        try:
            with connection.cursor() as cursor:
                cursor.execute(statement)
                return list(cursor.fetchall())
        finally:
            connection.close()

    def follow(self, other: "_Replicated") -> None:
        self.ask("SET GLOBAL rpl_semi_sync_master_enabled = 0")  # a follower has no followers
        place = f"MASTER_HOST = '{HOST}', MASTER_PORT = {other.port}, MASTER_USER = 'root'"
        self.ask(f"CHANGE MASTER TO {place}, MASTER_USE_GTID = current_pos, MASTER_CONNECT_RETRY = 1")
        self.ask("START SLAVE")

    def lead(self, *, followed: bool) -> None:
        """Take writes, once all that was received is done; commits wait for a follower, if there is one."""
        if self.ask("SHOW SLAVE STATUS"):
            self.ask("STOP SLAVE IO_THREAD")
            wait_for(self._has_done_all, "a replica to do what it received")
            self.ask("STOP SLAVE")
        timeout = "SET GLOBAL rpl_semi_sync_master_timeout = 60000"
        self.ask(f"{timeout}, GLOBAL rpl_semi_sync_master_enabled = {int(followed)}")
        self.ask("SET GLOBAL read_only = 0")

    def _has_done_all(self) -> bool:
        return "read all relay log" in str(self.ask("SHOW SLAVE STATUS")[0]["Slave_SQL_Running_State"])


class MariaDBPair(_Pair):
    """Semi-synchronous replication; what takes the writes is not read-only."""

    def __init__(self) -> None:
        super().__init__()
        self.primary = _Replicated(1)
        self._other = _Replicated(2, self.primary)
        self.nodes = [self.primary, self._other]

    @property
    def url(self) -> str:
        return f"mysql://{USER}@{self.hosts}/{DATABASE}"

    def _settle(self) -> None:
        self._other.follow(self.primary)
        self.primary.lead(followed=True)
        for statement in (
            f"CREATE DATABASE {DATABASE}",
            f"CREATE USER {USER}@'{HOST}'",
            f"GRANT ALL PRIVILEGES ON {DATABASE}.* TO {USER}@'{HOST}'",
        ):
            self.primary.ask(statement)

    def kill_primary(self, death: Death) -> None:
        if death is Death.DEMOTION:
            self.primary.ask("SET GLOBAL read_only = 1")
            done = self.primary.ask("SELECT @@gtid_binlog_pos AS position")[0]["position"]
            self._other.ask(f"SELECT MASTER_GTID_WAIT('{done}', 60)")
        else:
            self.primary.kill()

    def replace(self) -> None:
        self.primary, self._other = self._other, self.primary
        self.primary.lead(followed=False)

    def heal(self) -> None:
        """A demoted server follows; a killed server may have unacknowledged commits, and stays away."""
        if self._other.pid:
            self._other.follow(self.primary)
            wait_for(lambda: self._other.ask("SHOW SLAVE STATUS")[0]["Slave_IO_Running"] == "Yes", "a follower")
            self.primary.ask("SET GLOBAL rpl_semi_sync_master_enabled = 1")


def _fetch(url: str, statement: str) -> list[Any]:
    async def fetch() -> list[Any]:
        connection = await asyncpg.connect(url)
        try:
            return list(await connection.fetch(statement))
        finally:
            await connection.close()

    return asyncio.run(fetch())
