"""An action survives the death of the process that began it, and changes no run twice."""

import asyncio
import os
import signal
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from perdure import App, Client, WorkflowFailedError
from perdure.bulk import Progress, Selection, serving, start
from perdure.bulk.workflow import bulk
from perdure.engine.api.client import storage_of
from perdure.inspection import RunFilter
from perdure.testing import crash_everywhere
from tests.bulk.shop import broken
from tests.bulk.test_bulk import exists, fail
from tests.conftest import BackendDatabase
from tests.support.databases import DATABASES

ROOT = Path(__file__).parents[2]
RUNS = 60
DIES_AT = 40  # in the second transaction


async def begin(url: str) -> None:
    """Begin an action, and die while it is carried out."""
    retry, calls = Client._retry_once, 0

    async def retry_or_die(self: Client, instance_id: str) -> bool:
        nonlocal calls
        calls += 1
        if calls == DIES_AT:
            os.kill(os.getpid(), signal.SIGKILL)
        return await retry(self, instance_id)

    Client._retry_once = retry_or_die  # type: ignore[method-assign]
    async with Client(url) as client, serving(client, lease=1):
        selection = Selection.of(RunFilter(status="failed"), await storage_of(client).now())
        await (await start(client, "retry", selection, id="action")).result()


@pytest.mark.parametrize("kind", DATABASES)
async def test_another_worker_resumes_the_action_of_a_killed_process(
    backend_database: BackendDatabase, kind: str
) -> None:
    async with backend_database(kind) as database, Client(database.url) as client:
        ids = await fail(client, RUNS)
        code = f"import asyncio; from tests.bulk.test_crashes import begin; asyncio.run(begin({database.url!r}))"
        child = await asyncio.create_subprocess_exec(sys.executable, "-c", code, cwd=ROOT, stderr=subprocess.PIPE)
        _, errors = await child.communicate()
        assert child.returncode == -signal.SIGKILL, errors
        action = client.get("action")
        assert {**await action.state(), "reasons": {}} == {**vars_of(Progress("retry", RUNS, 25)), "reasons": {}}
        async with serving(client):
            assert (await action.result(60))["done"] == RUNS
        for id in ids:
            assert [await exists(client, f"{id}~r{number}") for number in (1, 2)] == [True, False]


def vars_of(progress: Progress) -> dict[str, object]:
    return {name: getattr(progress, name) for name in Progress.__dataclass_fields__}


async def scenario(app: App) -> object:
    runs = [await broken.options(id=f"b-{number}").start(number) for number in range(3)]
    for run in runs:
        with pytest.raises(WorkflowFailedError):
            await run.result()
    selection = Selection(datetime(2100, 1, 1, tzinfo=UTC), workflow="bulk.broken", status="failed", most=3)
    progress = await (await start(app, "retry", selection, id="action")).result()
    found = {run.id async for run in app.runs(workflow="bulk.broken")}
    return progress.done, sorted(found)


async def test_crash_at_any_write_changes_no_run_twice() -> None:
    report = await crash_everywhere(scenario, workflows=[broken, bulk], limit=60)
    assert len(report.points) == 60
