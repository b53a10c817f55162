"""Look at the tables: definitions of workflows."""

import pytest

from perdure.database.backends.base import Executor
from perdure.model.records import WorkflowInstance
from perdure.storage.stores import SQLStorage


async def stored(sql: Executor) -> list[tuple[str, str, str]]:
    rows = await sql.fetch("SELECT workflow_name, source_hash, source_code FROM workflow_definitions")
    return sorted((str(name), str(source_hash), str(code)) for name, source_hash, code in rows)


async def test_definitions_are_stored_once(storage: SQLStorage, sql: Executor) -> None:
    await storage.define_workflows({"order": "h1", "é": ""})
    await storage.define_workflows({"order": "h1"})
    await storage.define_workflows({})
    assert await stored(sql) == [("order", "h1", ""), ("é", "", "")]


async def test_workflow_has_several_versions(storage: SQLStorage, sql: Executor) -> None:
    await storage.define_workflows({"order": "h1"})
    await storage.define_workflows({"order": "h2"})
    assert await stored(sql) == [("order", "h1", ""), ("order", "h2", "")]


async def test_creation_keeps_an_existing_definition(storage: SQLStorage, sql: Executor) -> None:
    await storage.define_workflows({"order": "h1"})
    await storage.create_instance(WorkflowInstance("i-1", "order", source_hash="h1"), source_code="def order(): ...")
    assert await stored(sql) == [("order", "h1", "")]


async def test_definitions_belong_to_the_open_transaction(storage: SQLStorage, sql: Executor) -> None:
    with pytest.raises(ZeroDivisionError):
        async with storage.transaction():
            await storage.define_workflows({"order": "h1"})
            raise ZeroDivisionError
    assert await stored(sql) == []
