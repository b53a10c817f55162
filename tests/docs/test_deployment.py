"""docs/deployment: rights are sufficient on real servers, PgBouncer works as described, and files are valid."""

import asyncio
import re
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit
from uuid import uuid4

import asyncpg
import pytest
import yaml

from perdure import App, activity, connection, publish, receive, send_event, sleep, subscribe, wait_event, workflow
from perdure.errors import SchemaError, StorageError
from perdure.testing.servers import PgBouncer, PostgresServer
from tests.cli.programs import program
from tests.docs.console import File, Session, parts
from tests.docs.marks import ROOT
from tests.engine.waiting import until
from tests.support.databases import connect_mysql, fetch_mysql

DEPLOYMENT = ROOT / "docs" / "deployment"


def files_of(page: str) -> dict[str, str]:
    found = [part for part in parts((DEPLOYMENT / page).read_text("utf-8")) if isinstance(part, File)]
    return {file.name: file.text for file in found}


@activity
async def deployed_charge(order_id: str) -> str:
    await send_event("deployed_paid", {"order_id": order_id})
    return f"receipt for {order_id}"


@workflow
async def deployed_child(order_id: str) -> int:
    return 2


@workflow
async def deployed_order(order_id: str) -> str:
    await subscribe("deployed_prices")
    receipt = await deployed_charge(order_id)
    await deployed_child(order_id)
    await publish("deployed_prices", 3)
    price = await receive("deployed_prices")
    await sleep(0.01)
    event = await wait_event("deployed_shipped", where={"order_id": order_id})
    return f"{receipt}, {price.data}, {event.data['by']}"


async def execute(url: str) -> str:
    async with App(url, workflows=[deployed_order, deployed_child]) as app:
        run = await deployed_order.options(id="A-1").start("A-1")
        await app.send_event("deployed_shipped", {"order_id": "A-1", "by": "Ann"}, to="A-1")
        result = await run.result(timeout=60)
        assert await app.runs(workflow=deployed_order).delete() is not None
        return result


@asynccontextmanager
async def roles(database: str, script: str, admin: str) -> AsyncIterator[dict[str, str]]:
    """Run the statements of the page with names of this test's own; yield the URLs of the roles."""
    suffix = uuid4().hex[:8]
    script = script.replace("shop_", f"shop_{suffix}_").replace("shop.*", f"{urlsplit(database).path[1:]}.*")
    statements = [each.strip() for each in script.split(";") if each.strip()]
    names = {each: f"shop_{suffix}_{each}" for each in ("owner", "worker", "reader")}
    passwords = dict(zip(names, ("change-me-1", "change-me-2", "change-me-3"), strict=True))
    parts = urlsplit(database)
    place = f"{parts.hostname}:{parts.port}"
    await _run(admin, statements)
    try:
        yield {
            each: parts._replace(netloc=f"{name}:{passwords[each]}@{place}").geturl() for each, name in names.items()
        }
    finally:
        await _run(admin, [_drop(name, database) for name in names.values()])


def _drop(name: str, database: str) -> str:
    return (
        f"DROP USER {name}@'%'" if database.startswith("mysql") else f"DROP OWNED BY {name} CASCADE; DROP ROLE {name}"
    )


async def _run(url: str, statements: list[str]) -> None:
    if url.startswith("mysql"):
        async with connect_mysql(url) as connection:
            for statement in statements:
                await fetch_mysql(connection, statement)
    else:
        session = await asyncpg.connect(url)
        try:
            for statement in statements:
                await session.execute(statement)
        finally:
            await session.close()


async def test_worker_without_rights_on_tables_of_postgresql_executes_runs(
    fresh_postgres_db: str, tmp_path: Path
) -> None:
    await check_rights("postgresql.sql", fresh_postgres_db, "perdure.", tmp_path)


async def test_worker_without_rights_on_tables_of_mysql_executes_runs(fresh_mysql_db: str, tmp_path: Path) -> None:
    await check_rights("mysql.sql", fresh_mysql_db, "", tmp_path)


async def check_rights(script: str, database: str, schema: str, folder: Path) -> None:
    async with roles(database, files_of("database-rights.md")[script], database) as urls:
        with pytest.raises(SchemaError):
            await execute(urls["worker"])
        await asyncio.to_thread(program, folder, "migrate", "up", "--database", urls["owner"])
        assert await execute(urls["worker"]) == "receipt for A-1, 3, Ann"
        await asyncio.to_thread(program, folder, "runs", "--database", urls["reader"])
        await check_that_doctor_can_read_everything(urls["reader"], folder)
        with pytest.raises(Exception, match=r"denied|permission"):
            await _run(urls["worker"], [f"CREATE TABLE {schema}extra (n int)"])
        with pytest.raises(Exception, match=r"denied|permission"):
            await _run(urls["reader"], [f"DELETE FROM {schema}workflow_instances"])
        copy = ("copy", "--from", urls["owner"], "--to", f"sqlite:///{folder}/moved.db")
        await asyncio.to_thread(program, folder, *copy)
        with pytest.raises(StorageError, match=r"perdure moved this database to .*/moved.db"):
            await execute(urls["worker"])


async def check_that_doctor_can_read_everything(url: str, folder: Path) -> None:
    """Check that no check of `perdure doctor` lacks a right; servers of tests do not sync, which it does report."""
    done = await asyncio.to_thread(program, folder, "doctor", "--database", url, "-o", "json", code=1)
    problems = {check["check"]: check["advice"] for check in done.json["checks"] if check["state"] == "problem"}
    assert list(problems) == ["server"]
    assert "a crash would lose commits" in problems["server"]


@pytest.mark.parametrize("mode", ["session", "transaction"])
async def test_app_works_behind_pgbouncer(mode: str, fresh_postgres_db: str, postgres_server: PostgresServer) -> None:
    with PgBouncer(postgres_server, mode) as pooler:
        url = urlsplit(pooler.url)._replace(path=urlsplit(fresh_postgres_db).path).geturl()
        assert await execute(url) == "receipt for A-1, 3, Ann"


async def test_statement_mode_of_pgbouncer_is_refused(fresh_postgres_db: str, postgres_server: PostgresServer) -> None:
    with PgBouncer(postgres_server, "statement") as pooler:
        url = urlsplit(pooler.url)._replace(path=urlsplit(fresh_postgres_db).path).geturl()
        with pytest.raises(Exception, match=r"(?i)transaction|statement"):
            await execute(url)


@activity(transactional=True)
async def deployed_hold() -> None:
    connection()
    await released.wait()


@workflow
async def deployed_holder() -> None:
    await deployed_hold()


released = asyncio.Event()


async def test_worker_on_postgresql_opens_two_connections_besides_its_pool(fresh_postgres_db: str) -> None:
    session = await asyncpg.connect(urlsplit(fresh_postgres_db)._replace(path="/postgres").geturl())
    name = urlsplit(fresh_postgres_db).path[1:]
    try:
        await check_connections(
            fresh_postgres_db,
            lambda: session.fetchval("SELECT count(*) FROM pg_stat_activity WHERE datname = $1", name),
            2,
        )
    finally:
        await session.close()


async def test_worker_on_mysql_opens_one_connection_besides_its_pool(fresh_mysql_db: str, mysql_url: str) -> None:
    statement = f"SELECT count(*) FROM information_schema.processlist WHERE db = '{urlsplit(fresh_mysql_db).path[1:]}'"

    async def count() -> int:
        ((number,),) = await fetch_mysql(session, statement)
        return int(number)

    async with connect_mysql(mysql_url) as session:
        await check_connections(fresh_mysql_db, count, 1)


async def check_connections(url: str, count: Callable[[], Awaitable[int]], more: int) -> None:
    """Occupy a pool of two connections, and check how many the worker has in all."""

    async def has(number: int) -> bool:
        return await count() >= number

    released.clear()
    async with App(f"{url}?pool_size=2", workflows=[deployed_holder]) as app:
        await until(lambda: has(1 + more))  # one of the pool, and all others
        runs = [await deployed_holder.start() for _ in range(2)]
        try:
            await until(lambda: has(2 + more))
        finally:
            released.set()
        for run in runs:
            await run.result(timeout=60)
        assert (await app.health()).ok
        assert not await has(3 + more)


def test_manifests_are_valid_and_name_real_commands_and_paths() -> None:
    deployment, job = yaml.safe_load_all(files_of("kubernetes.md")["worker.yaml"])
    assert (deployment["kind"], job["kind"]) == ("Deployment", "Job")
    (worker,) = deployment["spec"]["template"]["spec"]["containers"]
    routes = (ROOT / "src" / "perdure" / "http" / "health.py").read_text("utf-8")
    for probe in ("readinessProbe", "livenessProbe"):
        assert f'"{worker[probe]["httpGet"]["path"]}"' in routes
    for container in (worker, job["spec"]["template"]["spec"]["containers"][0]):
        assert container["command"][0] == "perdure"
        done = subprocess.run(
            [sys.executable, "-m", "perdure", container["command"][1], "--help"],
            capture_output=True,
            text=True,
            check=True,
        )
        assert all(option in done.stdout for option in container["command"] if option.startswith("--"))


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_unit_is_valid(tmp_path: Path) -> None:
    ((name, text),) = files_of("systemd.md").items()
    unit = tmp_path / name.replace("@", "@1")
    text = re.sub(r"/srv/shop/.venv/bin/perdure", sys.executable, text).replace("/srv/shop", str(tmp_path))
    unit.write_text(text.replace("User=shop\n", ""))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(unit)], capture_output=True, text=True, check=False
    )
    assert [line for line in done.stderr.splitlines() if "shop-worker" in line] == []


def test_commands_of_the_page_of_migrations(tmp_path: Path) -> None:
    with Session(tmp_path) as terminal:
        terminal.play((DEPLOYMENT / "migrations.md").read_text("utf-8"))
