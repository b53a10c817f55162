"""PostgreSQL: the schema of the tables, with any other content of the database and any role."""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.resources import files
from urllib.parse import urlsplit
from uuid import uuid4

import asyncpg
import psycopg
import pytest

from perdure import App, Client, workflow
from perdure.database.dialects import PostgresDriver
from perdure.errors import ConfigurationError, RunNotFoundError, SchemaError
from perdure.model.records import ListInstancesOptions, WorkflowInstance
from perdure.storage.migrations import migrate, runner, tables, up_statements, versions
from perdure.storage.sql import load_statements
from perdure.storage.stores import open_storage
from tests.storage.migrations.databases import Database

pytestmark = pytest.mark.parametrize("database", ["postgresql"], indirect=True)

SQL_FILES = {file.name for file in files("perdure.storage.sql").iterdir() if file.name.endswith(".sql")}
AGGREGATES = [name[:-4] for name in sorted(SQL_FILES - {"migrations.sql"})]  # migrations get their schema otherwise
OURS = {*tables("postgresql"), "schema_migrations"}


@workflow(name="schemas.greet")
async def greet(name: str) -> str:
    return f"hello {name}"


async def schemas(database: Database) -> dict[str, set[str]]:
    """Every schema with the tables in it."""
    found: dict[str, set[str]] = {}
    query = "SELECT schemaname::text, tablename::text FROM pg_tables WHERE schemaname NOT IN ('pg_catalog', "
    for schema, table in await database.fetch(query + "'information_schema')"):
        found.setdefault(schema, set()).add(table)
    return found


async def use(url: str, name: str = "i-1") -> None:
    """Open a storage, write, and read back, by a function of ours too."""
    async with open_storage(url) as storage:
        await storage.create_instance(WorkflowInstance(name, "wf", b'{"n": 1}'))
        await storage.publish_to_channel("c", b"1", message_id="m", source="s")
        page = await storage.list_instances(ListInstancesOptions(input_filters={"n": 1}))
        assert name in [instance.instance_id for instance in page.instances]


@asynccontextmanager
async def role(database: Database, *grants: str, settings: str = "") -> AsyncIterator[str]:
    """The URL for a new role without rights but those; `{}` in a grant stands for its name."""
    name = f"role_{uuid4().hex}"
    place = urlsplit(database.url)
    await database.execute(f"CREATE ROLE {name} LOGIN", *(grant.format(name) for grant in grants))
    if settings:
        await database.execute(f"ALTER ROLE {name} SET {settings}")
    try:
        yield place._replace(netloc=f"{name}@{place.hostname}:{place.port}").geturl()
    finally:
        await database.execute(f"DROP OWNED BY {name} CASCADE", f"DROP ROLE {name}")


async def test_tables_are_created_in_their_own_schema(database: Database) -> None:
    await use(database.url)
    assert await schemas(database) == {"perdure": OURS}


@pytest.mark.parametrize("name", ["jobs", "My-Jobs", "_jöbs", "select"])
async def test_schema_can_be_set_in_the_url(database: Database, name: str) -> None:
    await use(f"{database.url}?schema={name}")
    await use(f"{database.url}?schema={name}", "i-2")
    assert await schemas(database) == {name: OURS}


@pytest.mark.parametrize(
    "name", ["", "1st", "a b", 'a"b', "a'b", "a.b", "a%25b", "{now}", ":id", "pg_jobs", "information_schema", "x" * 64]
)
def test_invalid_schema_name_is_refused(database: Database, name: str) -> None:
    with pytest.raises(ConfigurationError, match="the option schema of the PostgreSQL URL is not a schema name"):
        open_storage(f"{database.url}?schema={name}")


@pytest.mark.parametrize("schema", ["public", "theirs"])
async def test_tables_of_edda_are_adopted_in_their_schema(database: Database, schema: str) -> None:
    if schema != "public":
        place = urlsplit(database.url).path.strip("/")
        await database.execute(f"CREATE SCHEMA {schema}", f"ALTER DATABASE {place} SET search_path = {schema}, public")
    await database.create_edda_tables()
    await use(database.url)
    assert await schemas(database) == {schema: OURS}
    await use(database.url, "i-2")
    assert await schemas(database) == {schema: OURS}


async def test_tables_of_edda_in_public_are_adopted_whatever_the_search_path(database: Database) -> None:
    await database.create_edda_tables()
    await use(f"{database.url}?search_path=pg_catalog")
    assert await schemas(database) == {"public": OURS}


async def test_tables_in_public_are_found_after_an_administrator_has_partitioned_them(database: Database) -> None:
    await use(f"{database.url}?schema=public")
    await database.execute(
        "ALTER TABLE workflow_instances RENAME TO unpartitioned",
        "CREATE TABLE workflow_instances (LIKE unpartitioned INCLUDING ALL) PARTITION BY HASH (instance_id)",
        "CREATE TABLE partition_1 PARTITION OF workflow_instances FOR VALUES WITH (MODULUS 1, REMAINDER 0)",
        "DROP TABLE unpartitioned CASCADE",
    )
    await use(database.url, "i-2")
    assert await schemas(database) == {"public": {*OURS, "partition_1"}}


async def test_unrelated_table_in_public_is_not_adopted(database: Database) -> None:
    await database.execute("CREATE TABLE public.workflow_instances (id BIGINT PRIMARY KEY, status TEXT)")
    await use(database.url)
    assert await schemas(database) == {"public": {"workflow_instances"}, "perdure": OURS}


async def test_schema_is_kept_when_edda_is_added_later(database: Database) -> None:
    await use(database.url)
    await database.execute("SET search_path = public", *up_statements("postgresql")[0].statements)
    await use(database.url, "i-2")
    assert (await schemas(database))["perdure"] == OURS
    assert await database.fetch("SELECT count(*) FROM perdure.workflow_instances") == [(2,)]


async def test_search_path_of_the_role_is_ignored(database: Database) -> None:
    grant = f"GRANT CREATE ON DATABASE {urlsplit(database.url).path.strip('/')} TO {{}}"
    async with role(database, grant, settings="search_path = nowhere") as url:
        await use(url)
        async with App(url):
            handle = await greet.start("a")
            assert await handle.result() == "hello a"
    assert set(await schemas(database)) <= {"perdure"}


async def test_error_for_a_role_that_cannot_create_schemas_says_what_to_do(database: Database) -> None:
    async with role(database) as url:
        name = urlsplit(url).username
        with pytest.raises(SchemaError, match=r"does not exist .* lacks the privilege CREATE on the data") as caught:
            await use(url)
        (advice,) = re.findall(r"run (CREATE SCHEMA .*?), or use \?schema=public", str(caught.value))
        assert advice == f'CREATE SCHEMA "perdure" AUTHORIZATION "{name}"'
        await database.execute(advice)
        await use(url)
        await use(url, "i-2")
        assert await schemas(database) == {"perdure": OURS}


async def test_error_for_missing_privileges_on_the_schema_says_what_to_do(database: Database) -> None:
    await database.execute("CREATE SCHEMA perdure")
    async with role(database) as url:
        with pytest.raises(SchemaError, match="lacks the privilege USAGE or CREATE on the schema 'perdure'") as caught:
            await use(url)
        (advice,) = re.findall(r"run (GRANT .*?), or use another", str(caught.value))
        await database.execute(advice)
        await use(url)


async def test_role_can_use_the_public_schema(database: Database) -> None:
    async with role(database, "GRANT USAGE, CREATE ON SCHEMA public TO {}") as url:
        await use(f"{url}?schema=public")
        assert await schemas(database) == {"public": OURS}


async def test_role_needs_no_create_privilege_once_the_tables_exist(database: Database) -> None:
    await use(database.url)
    grants = [
        "GRANT USAGE ON SCHEMA perdure TO {}",
        "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA perdure TO {}",
        "GRANT USAGE ON ALL SEQUENCES IN SCHEMA perdure TO {}",
    ]
    async with role(database, *grants) as url:
        await use(url, "i-2")


async def test_two_schemas_of_one_database_are_independent(database: Database) -> None:
    one, two = f"{database.url}?schema=one", f"{database.url}?schema=two"
    async with App(one):
        await (await greet.options(id="same").start("a")).result()
        async with Client(two) as client:
            with pytest.raises(RunNotFoundError):
                await client.get("same").info()
            await greet.options(id="same").start("b")  # whose notification the other app hears
    async with App(two) as app:
        assert await app.get("same").result() == "hello b"
    for schema, value in (("one", "a"), ("two", "b")):
        found = await database.fetch(f"SELECT input_data, status FROM {schema}.workflow_instances")
        assert [(value in data, status) for data, status in found] == [(True, "completed")]


async def test_migration_does_not_wait_for_another_schema(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "WAIT_SEC", 1.0)
    async with database.connect() as rival, database.connect() as connection:
        await rival.execute("BEGIN")
        await rival.execute(f"SELECT pg_advisory_xact_lock({runner._lock_key('one')})")
        await rival.execute(f"SELECT pg_advisory_xact_lock({runner._lock_key('public')})")
        assert await migrate(connection, "postgresql", "two") == versions("postgresql")


@pytest.mark.parametrize("name", AGGREGATES)
def test_every_statement_names_the_schema(database: Database, name: str) -> None:
    driver = PostgresDriver(schema="apart")
    bare = re.compile(rf"(?<![\w.])(?:{'|'.join(tables('postgresql'))}|perdure_json)(?![\w.])")
    for statement in load_statements(name):
        for part in driver.parts(statement):
            text = part.text.replace("relname = 'perdure_waits'", "")  # in the catalog a name has no schema
            assert not bare.search(text), part.text


class TestStartInATransaction:
    async def test_search_path_of_the_caller_is_ignored(self, database: Database) -> None:
        await use(database.url)
        caller = await asyncpg.connect(database.url, server_settings={"search_path": "nowhere"})
        async with caller.transaction():
            await greet.options(id="run", in_transaction=caller).start("a")
        await caller.close()
        assert await database.fetch("SELECT count(*) FROM perdure.workflow_instances WHERE instance_id = 'run'") == [
            (1,)
        ]

    async def test_start_uses_the_schema_of_the_open_client(self, database: Database) -> None:
        await use(database.url)
        async with Client(f"{database.url}?schema=other"):
            with psycopg.connect(database.url) as caller:
                caller.execute("SELECT 1")
                greet.options(id="run", in_transaction=caller).start_sync("a")
        for schema, number in (("perdure", 0), ("other", 1)):
            query = f"SELECT count(*) FROM {schema}.workflow_instances WHERE instance_id = 'run'"
            assert await database.fetch(query) == [(number,)]

    async def test_start_without_a_client_finds_the_only_schema(self, database: Database) -> None:
        await use(f"{database.url}?schema=other")
        caller = await asyncpg.connect(database.url)
        async with caller.transaction():
            await greet.options(id="run", in_transaction=caller).start("a")
        await caller.close()
        assert await database.fetch("SELECT status FROM other.workflow_instances WHERE instance_id = 'run'")

    async def test_start_without_a_client_prefers_public_whatever_the_search_path(self, database: Database) -> None:
        await use(f"{database.url}?schema=another")
        await use(f"{database.url}?schema=public")
        caller = await asyncpg.connect(database.url, server_settings={"search_path": "nowhere"})
        async with caller.transaction():
            await greet.options(id="run", in_transaction=caller).start("a")
        await caller.close()
        assert await database.fetch("SELECT status FROM public.workflow_instances WHERE instance_id = 'run'")

    async def test_start_without_a_client_lists_several_schemas_in_its_error(self, database: Database) -> None:
        await use(f"{database.url}?schema=one")
        await use(f"{database.url}?schema=two")
        caller = await asyncpg.connect(database.url)
        async with caller.transaction():
            with pytest.raises(SchemaError, match="in several schemas, 'one', 'two': open a Client with"):
                await greet.options(in_transaction=caller).start("a")
            assert await caller.fetchval("SELECT 1") == 1
        await caller.close()

    async def test_start_without_tables_says_what_to_do(self, database: Database) -> None:
        caller = await asyncpg.connect(database.url)
        async with caller.transaction():
            with pytest.raises(SchemaError, match="without perdure's tables: open an App or Client"):
                await greet.options(in_transaction=caller).start("a")
        await caller.close()
