"""The effect table: one row for each execution of a transactional activity, so that a duplicate shows."""

from dataclasses import dataclass

from perdure import activity_info, connection
from perdure.storage.stores import SQLStorage
from tests.support.databases import run_natively

TABLE = "rig_entries"
COLUMNS = "run", "step", "token"


@dataclass(frozen=True, slots=True)
class Entry:
    """One row: which execution of which step entered it."""

    run: str
    step: str
    token: str


async def make_table(storage: SQLStorage) -> None:
    """Make the table, empty. Nothing in it is unique: it has to be able to show what went wrong."""
    columns = ", ".join(f"{column} VARCHAR(200) NOT NULL" for column in COLUMNS)
    await storage.db().execute(f"CREATE TABLE IF NOT EXISTS {TABLE} ({columns})")
    await storage.db().execute(f"DELETE FROM {TABLE}")


async def enter(token: str) -> None:
    """Enter an execution of the activity that calls, in its own transaction."""
    info = activity_info()
    await run_sql(f"INSERT INTO {TABLE} VALUES ('{info.workflow_id}', '{info.step}', '{token}')")


async def entered(storage: SQLStorage) -> list[Entry]:
    """All that was committed."""
    return [Entry(*row) for row in await storage.db().fetch(f"SELECT {', '.join(COLUMNS)} FROM {TABLE}")]


async def run_sql(statement: str) -> None:
    """In the transaction of the activity that calls."""
    await run_natively(connection(), statement)


def is_entry(step: str) -> bool:
    """Whether a step is one whose executions are entered."""
    return step.endswith(":entering")
