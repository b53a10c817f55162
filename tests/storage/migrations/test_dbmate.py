"""The real dbmate reads the files and the ledger of perdure, and perdure reads those of dbmate."""

import subprocess
import sysconfig
from importlib.resources import files
from pathlib import Path

from perdure.storage.migrations import versions
from tests.storage.migrations.databases import Database


def dbmate(database: Database, command: str, *, schema: str = "") -> str:
    options = "?sslmode=disable" + (schema and f"&search_path={schema}") if database.dialect == "postgresql" else ""
    url = database.url.replace("sqlite://", "sqlite:") + options
    folder = files("perdure.storage.migrations") / database.dialect
    program = Path(sysconfig.get_path("scripts")) / "dbmate"
    arguments = [str(program), "--url", url, "--migrations-dir", str(folder), "--no-dump-schema", command]
    ended = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


async def test_perdure_accepts_tables_migrated_by_dbmate(database: Database) -> None:
    assert dbmate(database, "migrate").count("Applied") == len(versions(database.dialect))
    assert await database.migrate() == []
    assert await database.schema() == await database.finished_schema()


async def test_dbmate_accepts_tables_migrated_by_perdure(database: Database) -> None:
    await database.migrate()
    assert "Pending: 0" in dbmate(database, "status", schema="perdure")
    assert "Appl" not in dbmate(database, "migrate", schema="perdure")


async def test_dbmate_continues_from_the_tables_of_edda(database: Database) -> None:
    await database.create_edda_tables()
    await database.execute("CREATE TABLE schema_migrations (version VARCHAR(255) PRIMARY KEY)")
    await database.execute(f"INSERT INTO schema_migrations VALUES ('{versions(database.dialect)[0]}')")
    assert dbmate(database, "migrate").count("Applied") == len(versions(database.dialect)) - 1
    assert await database.migrate() == []


async def test_dbmate_rolls_back_all_migrations(database: Database) -> None:
    await database.migrate()
    for _ in versions(database.dialect):
        dbmate(database, "rollback")
    assert await database.tables() == ["schema_migrations"]
    assert await database.migrate() == versions(database.dialect)
