"""Look at the tables: transactions."""

from perdure.database.backends.base import Executor
from perdure.storage.stores import SQLStorage
from perdure.testing.conformance.tools import new

COUNT = "SELECT count(*) FROM workflow_instances"


async def test_caller_can_execute_sql_on_the_connection(storage: SQLStorage, sql: Executor) -> None:
    await new(storage, "i-1")
    assert await sql.fetchval(COUNT) == 1
    conn = storage.conn()
    assert await conn.fetchrow("SELECT instance_id, status FROM workflow_instances") == ("i-1", "running")
    assert await conn.fetch(COUNT) == [(1,)]
    assert await conn.fetchrow("SELECT 1 FROM workflow_instances WHERE instance_id = 'none'") is None
    async with storage.transaction() as inside:
        assert inside.native is not None
        assert await inside.execute("UPDATE workflow_instances SET current_activity_id = 'mine'") == 1
    found = await storage.get_instance("i-1")
    assert found is not None
    assert found.current_activity_id == "mine"
