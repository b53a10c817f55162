"""Other projects' migration tools: the ledgers they keep, made by the tool itself or by the DDL that it issues."""

import subprocess
import sysconfig
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import sqlalchemy as sa
from alembic import command
from alembic.config import Config

from tests.storage.migrations.databases import Database

Tool = Callable[[Database, Path], Awaitable[None]]

# ActiveRecord 7.1, after `rails db:migrate` of two migrations.
RAILS = {
    "sqlite": ['CREATE TABLE "schema_migrations" ("version" varchar NOT NULL PRIMARY KEY)'],
    "postgresql": ['CREATE TABLE public."schema_migrations" ("version" character varying NOT NULL PRIMARY KEY)'],
    "mysql": ["CREATE TABLE `schema_migrations` (`version` varchar(255) NOT NULL PRIMARY KEY)"],
}
RAILS_ROWS = ["INSERT INTO {}schema_migrations (version) VALUES ('20240131120000'), ('20240229120000')"]

# Ecto SQL 3.12 with Postgrex, MyXQL and ecto_sqlite3.
ECTO = {
    "sqlite": [
        'CREATE TABLE IF NOT EXISTS "schema_migrations" ("version" INTEGER PRIMARY KEY, "inserted_at" TEXT)',
    ],
    "postgresql": [
        'CREATE TABLE IF NOT EXISTS public."schema_migrations" '
        '("version" bigint, "inserted_at" timestamp(0), PRIMARY KEY ("version"))',
    ],
    "mysql": [
        "CREATE TABLE IF NOT EXISTS `schema_migrations` "
        "(`version` bigint, `inserted_at` datetime, PRIMARY KEY (`version`)) ENGINE = INNODB",
    ],
}
ECTO_ROWS = ["INSERT INTO {}schema_migrations (version, inserted_at) VALUES (20240131120000, '2024-01-31 12:00:00')"]

# golang-migrate 4.17: its drivers sqlite3, postgres and mysql.
GOLANG = {
    "sqlite": [
        "CREATE TABLE IF NOT EXISTS schema_migrations (version uint64,dirty bool)",
        "CREATE UNIQUE INDEX IF NOT EXISTS version_unique ON schema_migrations (version)",
    ],
    "postgresql": [
        'CREATE TABLE IF NOT EXISTS "public"."schema_migrations" '
        "(version bigint not null primary key, dirty boolean not null)",
    ],
    "mysql": ["CREATE TABLE `schema_migrations` (version bigint not null primary key, dirty boolean not null)"],
}
GOLANG_ROWS = ["INSERT INTO {}schema_migrations (version, dirty) VALUES (7, false)"]

# Flyway 10; before version 5 its ledger had the name of one of the family's tables.
FLYWAY = {
    "sqlite": [
        'CREATE TABLE "flyway_schema_history" ("installed_rank" INT NOT NULL PRIMARY KEY, "version" VARCHAR(50), '
        '"description" VARCHAR(200) NOT NULL, "type" VARCHAR(20) NOT NULL, "script" VARCHAR(1000) NOT NULL, '
        '"checksum" INT, "installed_by" VARCHAR(100) NOT NULL, "installed_on" TEXT NOT NULL '
        "DEFAULT (strftime('%Y-%m-%d %H:%M:%f','now')), \"execution_time\" INT NOT NULL, \"success\" BOOLEAN NOT NULL)",
        'CREATE INDEX "flyway_schema_history_s_idx" ON "flyway_schema_history" ("success")',
    ],
    "postgresql": [
        'CREATE TABLE "public"."flyway_schema_history" ("installed_rank" INT NOT NULL, "version" VARCHAR(50), '
        '"description" VARCHAR(200) NOT NULL, "type" VARCHAR(20) NOT NULL, "script" VARCHAR(1000) NOT NULL, '
        '"checksum" INTEGER, "installed_by" VARCHAR(100) NOT NULL, "installed_on" TIMESTAMP NOT NULL DEFAULT now(), '
        '"execution_time" INTEGER NOT NULL, "success" BOOLEAN NOT NULL)',
        'ALTER TABLE "public"."flyway_schema_history" ADD CONSTRAINT "flyway_schema_history_pk" '
        'PRIMARY KEY ("installed_rank")',
        'CREATE INDEX "flyway_schema_history_s_idx" ON "public"."flyway_schema_history" ("success")',
    ],
    "mysql": [
        "CREATE TABLE `flyway_schema_history` (`installed_rank` INT NOT NULL, `version` VARCHAR(50), "
        "`description` VARCHAR(200) NOT NULL, `type` VARCHAR(20) NOT NULL, `script` VARCHAR(1000) NOT NULL, "
        "`checksum` INT, `installed_by` VARCHAR(100) NOT NULL, `installed_on` TIMESTAMP NOT NULL "
        "DEFAULT CURRENT_TIMESTAMP, `execution_time` INT NOT NULL, `success` BOOL NOT NULL, "
        "CONSTRAINT `flyway_schema_history_pk` PRIMARY KEY (`installed_rank`)) ENGINE=InnoDB",
        "CREATE INDEX `flyway_schema_history_s_idx` ON `flyway_schema_history` (`success`)",
    ],
}
FLYWAY_ROWS = [
    "INSERT INTO {}flyway_schema_history (installed_rank, version, description, type, script, checksum, installed_by, "
    "execution_time, success) VALUES (1, '1', 'init', 'SQL', 'V1__init.sql', 1, 'me', 5, true)"
]

_ENVIRONMENT = """
from alembic import context

context.configure(connection=context.config.attributes["connection"])
with context.begin_transaction():
    context.run_migrations()
"""
_REVISION = """
import sqlalchemy as sa
from alembic import op

revision = "1975ea83b712"
down_revision = None


def upgrade():
    op.create_table("alembic_orders", sa.Column("id", sa.Integer, primary_key=True))
"""
_DRIVERS = {"sqlite": "sqlite:/", "postgresql": "postgresql+psycopg:", "mysql": "mysql+pymysql:"}


def issuing(ddl: dict[str, list[str]], rows: Sequence[str]) -> Tool:
    """A tool by the statements that it issues."""

    async def run(database: Database, _: Path) -> None:
        place = "public." if database.dialect == "postgresql" else ""
        await database.execute(*ddl[database.dialect], *(row.format(place) for row in rows))

    return run


async def alembic(database: Database, folder: Path) -> None:
    """The real Alembic."""
    scripts = folder / "alembic"
    (scripts / "versions").mkdir(parents=True)
    (scripts / "env.py").write_text(_ENVIRONMENT)
    (scripts / "versions" / "1975ea83b712_orders.py").write_text(_REVISION)
    config = Config()
    config.set_main_option("script_location", str(scripts))
    engine = sa.create_engine(_DRIVERS[database.dialect] + database.url.partition(":")[2])
    with engine.begin() as connection:
        if database.dialect == "postgresql":
            connection.execute(sa.text("SET search_path = public"))
        config.attributes["connection"] = connection
        command.upgrade(config, "head")
    engine.dispose()


async def dbmate(database: Database, folder: Path) -> None:
    """The real dbmate, for another project's files."""
    files = folder / "dbmate"
    files.mkdir()
    (files / "20240131120000_orders.sql").write_text(
        "-- migrate:up\nCREATE TABLE dbmate_orders (id INTEGER PRIMARY KEY);\n"
        "-- migrate:down\nDROP TABLE dbmate_orders;\n"
    )
    options = "?sslmode=disable&search_path=public" if database.dialect == "postgresql" else ""
    url = database.url.replace("sqlite://", "sqlite:") + options
    program = Path(sysconfig.get_path("scripts")) / "dbmate"
    arguments = [str(program), "--url", url, "--migrations-dir", str(files), "--no-dump-schema", "migrate"]
    ended = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr


TOOLS: dict[str, tuple[Tool, str]] = {
    "rails": (issuing(RAILS, RAILS_ROWS), "schema_migrations"),
    "rails-without-migrations": (issuing(RAILS, ()), "schema_migrations"),
    "ecto": (issuing(ECTO, ECTO_ROWS), "schema_migrations"),
    "golang-migrate": (issuing(GOLANG, GOLANG_ROWS), "schema_migrations"),
    "dbmate": (dbmate, "schema_migrations"),
    "flyway": (issuing(FLYWAY, FLYWAY_ROWS), "flyway_schema_history"),
    "alembic": (alembic, "alembic_version"),
}
