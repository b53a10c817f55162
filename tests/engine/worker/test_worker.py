"""The parts of a worker."""

from perdure import App
from tests.support.storages import Database


async def test_health_names_the_background_tasks(memory: Database) -> None:
    async with App(memory.url, workflows=[]) as app:
        assert {"heartbeat", "listener", "work loop"} <= {task.name for task in (await app.health()).tasks}
