"""Exit codes and messages of mistakes: one line, no traceback, no password."""

import re
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from secrets import token_hex

import asyncpg
import pytest

from perdure.cli.exits import problem_of
from perdure.cli.main import run
from perdure.cli.settings import database_url
from perdure.error_pages import page_address
from perdure.errors import DatabaseUnavailableError
from perdure.storage.migrations.files import up_statements
from perdure.storage.stores import connected, open_storage
from tests.cli.programs import COMMAND, Cli, environment
from tests.conftest import BackendDatabase
from tests.support.storages import Database

PASSWORD = "s3cr3t-passw0rd"


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["bogus"], 2, 'Unknown command "bogus"'),
        (["run"], 2, 'Did you mean "runs"?'),
        (["-d", "sqlite:///x.db", "runs"], 2, "-d is no command: options follow the command"),
        (["runs", "--limit", "x"], 2, "--limit"),
        (["runs", "--limit", "0"], 2, "a page has 1 to 1000 runs"),
        (["runs", "--after", "x"], 2, "page"),
        (["runs", "--bogus"], 2, "--bogus"),
        (["runs", "order"], 2, "'order' is no filter"),
        (["runs", "input.a:1"], 2, "add state:"),
        (["runs", "input.a-b:1", "state:failed"], 2, "is no filter"),
        (["runs", "--where", "[]"], 2, "--where must be a JSON object"),
        (["runs", "state:failed", "--status", "failed"], 2, "say the same"),
        (["runs", "--status", "bogus"], 2, '"waiting_for_message", "waiting"'),
        (["runs", "--fields", "id,"], 2, "--fields has an empty name"),
        (["start", "x", "--at", "2026-11-01", "--after", "1h"], 2, "--at and --after exclude each other"),
        (["start", "x", "--timeout", "0s"], 2, "--timeout must be above 0, not '0s'"),
        (["cleanup", "--finished", "0d"], 2, "--finished must be above 0, not '0d'"),
        (["init", "/dev/null/shop"], 1, "/dev/null/shop cannot be used: Not a directory"),
        (["history", "sample", "/dev/null/shop"], 1, "/dev/null/shop cannot be used: Not a directory"),
        (["runs", "--every", "0", "--watch"], 2, "--every must be at least"),
        (["runs", "-o", "xml"], 2, "xml"),
        (["show"], 2, "requires an argument"),
        (["show", "nope"], 3, "run 'nope' does not exist"),
        (["trace", "x", "--depth", "-1"], 2, "--depth must be at least 0"),
        (["why", "nope"], 3, "run 'nope' does not exist"),
        (["trace", "nope"], 3, "run 'nope' does not exist"),
        (["history", "nope"], 3, "run 'nope' does not exist"),
        (["cancel", "nope"], 3, "run 'nope' does not exist"),
        (["retry", "nope"], 3, "run 'nope' does not exist"),
        (["send", "paid", "{}", "--to", "nope"], 3, "run 'nope' does not exist"),
        (["send", "paid", "not json"], 2, "write a text in both quotes, '\"text\"'"),
        (["start", "nope"], 3, "workflow 'nope' is unknown"),
        (["start", "nope", "--app", "no_such_module"], 2, "module 'no_such_module' does not exist"),
        (["worker", "tests.cli.shop:nope"], 2, "has no 'nope'; its Apps are: none"),
        (["worker", "tests/cli/shop.py"], 2, "is no module: write its name as in an import"),
        (["worker"], 2, "name the app"),
        (["serve"], 2, "name the app: perdure serve module:app"),
        (["serve", "tests.cli.shop", "--port", "99999"], 2, "--port must be 0 to 65535"),
        (
            ["serve", "tests.cli.shop", "--host", "0.0.0.0"],
            2,
            "the HTTP API, which has no token: set PERDURE_TOKEN",
        ),
        (["dashboard", "--host", "0.0.0.0"], 2, "the dashboard, which has no token: set PERDURE_TOKEN"),
        (["relay"], 2, "name the broker: --publisher"),
        (["relay", "--publisher", "gopher://x"], 2, "has an unknown scheme: use one of http://"),
        (["worker", "tests.cli.shop", "--log-level", "LOUD"], 2, "--log-level must be"),
        (["check-upgrade"], 2, "name the app: perdure check-upgrade module:app"),
        (["check-upgrade", "no_such_module"], 2, "module 'no_such_module' does not exist"),
        (["sql", "DELETE FROM workflow_instances"], 2, "only one SELECT, WITH or EXPLAIN"),
        (["sql", "SELECT 1; SELECT 2"], 2, "only one SELECT"),
        (["sql", "SELECT 1 /*! INTO OUTFILE 'x' */"], 2, "are not allowed"),
        (["sql", "SELECT 1 INTO OUTFILE 'x'"], 2, "INTO is not allowed"),
        (["sql", "WITH x AS (DELETE FROM y RETURNING 1) SELECT * FROM x"], 2, "DELETE is not allowed"),
        (["sql", "EXPLAIN ANALYZE SELECT 1"], 2, "ANALYZE is not allowed"),
        (["sql", "SELECT 1 FOR UPDATE"], 2, "UPDATE is not allowed"),
        (["sql", "--"], 2, "argument"),
        (["dev", "x", "--folder", "missing"], 2, "missing is no folder"),
        (["bench", "--runs", "0"], 2, "at least 1"),
        (["migrate", "sideways"], 2, "'sideways' is one argument too many: `perdure migrate --help`"),
        (["show", "a", "b"], 2, "'b' is one argument too many: `perdure show --help` shows"),
        (["migrate", "up", f"mysql://ann:{PASSWORD}@host/x"], 2, "'mysql://***@host/x' is one argument too many"),
        (["show", f"postgresql://ann:{PASSWORD}@host/x"], 3, "run 'postgresql://***@host/x' does not exist"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
async def test_mistake_is_one_line_with_its_exit_code(
    file: Database, cli: Cli, monkeypatch: pytest.MonkeyPatch, arguments: list[str], code: int, message: str
) -> None:
    monkeypatch.setenv("PERDURE_URL", file.url)
    done = await cli(*arguments, code=code)
    assert message in done.err
    assert done.err.startswith("perdure: ")
    assert done.err.count("\n") == 1
    assert done.out == ""


@pytest.mark.parametrize(
    ("url", "code", "message"),
    [
        ("oracle://x", 2, "a database URL begins with sqlite://"),
        ("sqlite:///missing.db", 2, "or create the database with `perdure migrate up` or a worker"),
        ("sqlite:///missing/x.db", 2, "the folder"),
        (f"postgresql://user:{PASSWORD}@127.0.0.1:1/x", 4, "cannot be reached"),
        (f"mysql://user:{PASSWORD}@127.0.0.1:1/x", 4, "cannot be reached"),
        (f"postgresql://user:{PASSWORD}@127.0.0.1:port/x", 2, "malformed"),
    ],
)
async def test_database_that_cannot_be_opened(cli: Cli, tmp_path: Path, url: str, code: int, message: str) -> None:
    for command in ("runs", "workers"):
        done = await cli(command, "--database", url, "--debug", code=code)
        assert message in done.err
        assert PASSWORD not in done.out + done.err
    problem = (await cli("runs", "--database", url, "-o", "json", code=code)).problem
    assert problem == {**problem, "exit_code": code, "type": page_address(problem["code"])}
    assert list(problem) == ["type", "title", "detail", "code", "exit_code"]
    assert list(tmp_path.iterdir()) == []  # nothing was created


@pytest.mark.parametrize("command", [["dashboard"], ["serve", "tests.cli.shop"], ["dev", "tests.cli.shop:app"]])
async def test_address_and_token_are_checked_by_the_names_that_people_gave(
    file: Database, cli: Cli, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    monkeypatch.setenv("PERDURE_URL", file.url)
    monkeypatch.setenv("PERDURE_TOKEN", "short")
    done = await cli(*command, code=2)
    assert (done.err.startswith("perdure: PERDURE_TOKEN must have at least 16"), done.out) == (True, "")
    monkeypatch.setenv("PERDURE_TOKEN", "long enough for everyone")
    for host in ("no-such-host.invalid", "192.0.2.1"):
        assert f"--host {host} is no address of this machine" in (await cli(*command, "--host", host, code=2)).err


async def test_database_is_never_migrated_unasked(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", "sqlite:///shop.db")
    (tmp_path / "shop.db").touch()
    for command in (["runs"], ["start", "order"], ["send", "paid", "1"], ["cancel", "x"], ["sql", "select 1"]):
        done = await cli(*command, code=0 if command[0] == "sql" else 4)
        assert command[0] == "sql" or "`perdure migrate up`" in done.err
    assert "has no tables of perdure" in (await cli("runs", code=4)).err
    assert (await cli("migrate", "status", code=1)).err.endswith("migrations are pending: run `perdure migrate up`\n")
    checks = (await cli("doctor", "-o", "json", code=1)).json["checks"]
    assert checks[-1] == {**checks[-1], "check": "migrations", "state": "problem", "advice": "perdure migrate up"}
    assert re.match(r"applied \d\d migrations to the sqlite database", (await cli("migrate", "up")).out)
    assert (await cli("migrate", "up", "-o", "json")).json == {"applied": [], "dialect": "sqlite"}
    await cli("runs")


async def test_doctor_advises_about_a_file_not_about_a_server(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "text.db").write_text("no database" * 100)
    found = (await cli("doctor", "-o", "json", "--database", "sqlite:///text.db", code=4)).json["checks"][-1]
    assert found == {**found, "check": "database", "state": "problem"}
    assert "the rights on the file" in found["advice"]
    text = (await cli("doctor", "--database", "sqlite:///text.db", code=4)).out
    assert text.endswith(f"\n\ndatabase: {found['found']}\n  {found['advice']}\n")  # whole lines, however wide


async def test_database_of_an_earlier_version_says_what_to_run(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", "sqlite:///shop.db")
    *earlier, last = up_statements("sqlite")
    with closing(sqlite3.connect("shop.db")) as database:  # as dbmate applies them
        for version, statements in earlier:
            for statement in statements:
                database.execute(statement)
            database.execute("CREATE TABLE IF NOT EXISTS schema_migrations (version varchar(128) PRIMARY KEY)")
            database.execute("INSERT INTO schema_migrations VALUES (?)", (version,))
        database.commit()
    for command in ("runs", "show x", "why x", "dashboard", "cancel x", "start order"):
        problem = (await cli(*command.split(), code=4)).err
        assert f"the first is {last[0]}" in problem
        assert "`perdure migrate up`" in problem
    status = await cli("migrate", "status", code=1)
    assert re.search(rf"^{last[0]} +pending$", status.out, re.MULTILINE)
    assert status.err == "1 migration is pending: run `perdure migrate up`\n"
    assert f"1 pending, the first is {last[0]}" in (await cli("doctor", code=1)).out
    assert (await cli("migrate", "up")).out == "applied 1 migration to the sqlite database\n"
    assert (await cli("runs")).err == "no runs match\n"


def test_disk_without_space_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "shop.db").touch()
    done = subprocess.run(
        ["bash", "-c", 'ulimit -f 8; exec "$@"', "bash", *COMMAND, "migrate", "up"],
        cwd=tmp_path,
        env=environment(tmp_path, DATABASE_URL="sqlite:///shop.db"),
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 4
    assert re.search(r"The disk may be full or broken \(SQLITE_IOERR_\w+\): see `df -h`", done.stderr)


def test_full_disk_says_to_free_space() -> None:
    with closing(sqlite3.connect(":memory:")) as database:
        database.execute("PRAGMA max_page_count = 1")
        with pytest.raises(sqlite3.OperationalError) as full:
            database.executescript("CREATE TABLE a (b); CREATE TABLE c (d)")
    error = DatabaseUnavailableError("SQLite cannot use the file: database or disk is full; nothing was written")
    error.__cause__ = full.value
    advice = "The disk of the database is full: free some space, then run the command again"
    assert problem_of(error).detail == f"{error}. {advice}"


async def test_migrations_are_printed_without_a_database(cli: Cli, tmp_path: Path) -> None:
    for dialect in ("sqlite", "postgresql", "mysql"):
        assert "CREATE TABLE IF NOT EXISTS workflow_instances" in (await cli("migrate", "dump-sql", dialect)).out
    assert (await cli("migrate", "dump-sql", "sqlite", "--since", "99999999999999")).out == ""


async def test_printed_migrations_make_a_database_that_has_all(
    cli: Cli, tmp_path: Path, fresh_postgres_db: str, fresh_mysql_db: str
) -> None:
    with closing(sqlite3.connect("new.db")) as file:
        file.executescript((await cli("migrate", "dump-sql", "sqlite")).out)
    postgres = await asyncpg.connect(fresh_postgres_db)
    await postgres.execute((await cli("migrate", "dump-sql", "postgresql")).out)
    await postgres.close()
    printed = (await cli("migrate", "dump-sql", "mysql", "-o", "json")).json["migrations"]
    async with connected(fresh_mysql_db) as mysql:
        for statement in [each for migration in printed for each in migration["statements"]]:
            await mysql.execute(statement)
    for url in ("sqlite:///new.db", fresh_postgres_db, fresh_mysql_db):
        await cli("migrate", "status", "-d", url)
        assert (await cli("migrate", "up", "-d", url, "-o", "json")).json["applied"] == []
        assert (await cli("runs", "-d", url)).err == "no runs match\n"


async def test_new_sqlite_file_is_created_by_migrate_up_only(cli: Cli, tmp_path: Path) -> None:
    await cli("migrate", "status", "-d", "sqlite:///new.db", code=2)
    assert not (tmp_path / "new.db").exists()
    await cli("migrate", "up", "-d", "sqlite:///new.db")
    async with open_storage("sqlite:///new.db") as storage:
        assert await storage.pending_migrations() == []


async def test_settings_come_from_options_environment_and_project(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from perdure.cli.options import Common

    assert "no database is given" in (await cli("runs", code=2)).err
    (tmp_path / "pyproject.toml").write_text('[tool.perdure]\ndatabase = "sqlite:///project.db"\n')
    (tmp_path / "below").mkdir()
    monkeypatch.chdir(tmp_path / "below")
    assert database_url(Common()) == "sqlite:///project.db"
    monkeypatch.setenv("DATABASE_URL", "postgres://h/other")
    assert database_url(Common()) == "postgresql://h/other"
    monkeypatch.setenv("PERDURE_URL", "mysql+asyncmy://h/own")
    assert database_url(Common()) == "mysql://h/own"
    assert database_url(Common(database="sqlite:///given.db")) == "sqlite:///given.db"
    assert PASSWORD not in repr(database_url(Common(database=f"mysql://u:{PASSWORD}@h/x")))
    (tmp_path / "pyproject.toml").write_text("[tool.perdure]\ndatabse = 1\n")
    monkeypatch.delenv("PERDURE_URL")
    monkeypatch.delenv("DATABASE_URL")
    assert "unknown setting for perdure: databse; known are app, database" in (await cli("runs", code=2)).err
    (tmp_path / "pyproject.toml").write_text("[tool.perdure\n")
    assert "cannot be read" in (await cli("runs", code=2)).err


@pytest.mark.parametrize("arguments", [[], ["runs"]], ids=["none", "runs"])
def test_missing_extra_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    monkeypatch.setitem(sys.modules, "cyclopts", None)
    assert run(arguments) == 1
    assert capsys.readouterr().err == ('perdure: the command line needs further packages: pip install "perdure[cli]"\n')


async def test_role_without_rights_is_no_unexpected_error(backend_database: BackendDatabase, cli: Cli) -> None:
    role = f"no_rights_{token_hex(4)}"
    async with backend_database("postgresql") as database:
        owner = await asyncpg.connect(database.url)
        try:
            await owner.execute(f"CREATE ROLE {role} LOGIN")
            url = re.sub(r"//[^/@]*@", f"//{role}@", database.url)
            problem = (await cli("runs", "-d", url, "-o", "json", code=1)).problem
            diagnosis = (await cli("doctor", "-d", url, "-o", "json", code=4)).json["checks"][-1]
        finally:
            await owner.execute(f"DROP ROLE {role}")
            await owner.close()
    assert problem["code"] == "storage"
    assert "permission denied" in problem["detail"]
    assert "docs/deployment/database-rights.md lists those that each command needs" in problem["detail"]
    assert (diagnosis["state"], diagnosis["found"]) == ("problem", problem["detail"])


async def test_unexpected_error_shows_its_traceback_with_debug_only(
    file: Database, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    from perdure import Client

    def broken(self: Client, **_: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(Client, "runs", broken)
    done = await cli("runs", "--database", file.url, code=1)
    assert done.err == "perdure: unexpected RuntimeError: a bug; --debug shows the traceback\n"
    assert "Traceback" in (await cli("runs", "--debug", "--database", file.url, code=1)).err


async def test_module_that_cannot_be_imported_is_one_line(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "cli_broken.py").write_text("1 / 0\n")
    done = await cli("worker", "cli_broken", "--database", "sqlite:///x.db", code=1)
    assert done.err == (
        "perdure: module 'cli_broken' cannot be imported: ZeroDivisionError: division by zero; --debug shows the "
        "traceback\n"
    )


async def test_statement_that_takes_too_long_is_given_up(file: Database, cli: Cli) -> None:
    endless = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT count(*) FROM n"
    done = await cli("sql", endless, "--timeout", "0.05", "--database", file.url, code=1)
    assert "has not ended after 0.05 s" in done.err
    await cli("sql", "SELECT 1", "--database", "sqlite:///missing.db", code=2)
