"""The worker for `perdure.bulk` of a process that began an action.

Whoever confirms an action expects that it happens, also while no worker is running: to cancel everything before the
workers start again, for example. So the command line and the dashboard execute their actions themselves. If they die,
any other worker that serves the workflow resumes the action.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress

from perdure.bulk.selection import NAME
from perdure.bulk.workflow import bulk
from perdure.engine.api.app import App
from perdure.engine.api.client import Client, storage_of
from perdure.errors import ClosedError, PerdureError, WorkflowCancelledError, WorkflowFailedError
from perdure.model.durations import Duration
from perdure.model.states import WorkflowStatus
from perdure.storage.stores import is_in_memory

log = logging.getLogger("perdure.bulk")

LEASE_SEC = 15


class _BulkApp(App):
    """An App that calls without a client don't use: the program has one of its own, which must stay the only one."""

    def _announce(self) -> None:
        pass

    def _withdraw(self) -> None:
        pass


@asynccontextmanager
async def serving(client: Client, *, lease: Duration = LEASE_SEC) -> AsyncIterator[None]:
    """Execute runs of `perdure.bulk`, and no others, on the database of an open client for the time of the block."""
    app = _app(client, lease)

    def is_told(record: logging.LogRecord) -> bool:
        """Leave out that this worker serves no other workflow: it is not meant to."""
        return record.module != "unserved" or getattr(record, "worker", None) != app.worker_id

    engine = logging.getLogger("perdure.engine")
    engine.addFilter(is_told)
    try:
        async with app:
            yield
    finally:
        engine.removeFilter(is_told)


def _app(client: Client, lease: Duration) -> App:
    """Return a worker with connections of its own: its heartbeat has another event loop, and cannot share a pool."""
    if not client.url or is_in_memory(client.url):
        return _BulkApp(storage_of(client), workflows=[bulk], lease=lease)  # which encodes values already
    codec = None if client.pipeline is None else client.pipeline.codecs
    return _BulkApp(client.url, workflows=[bulk], lease=lease, codec=codec)


class Background:
    """Executes actions in the background, until they have ended or the client closes."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()  # the loop itself has only weak references

    def execute(self, client: Client, *ids: str) -> None:
        """Execute actions in a task of its own; an App on a database in memory executes them itself."""
        if client.has_worker and is_in_memory(client.url):
            return
        task = asyncio.create_task(_execute(client, ids), name="perdure.bulk")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def resume(self, client: Client) -> None:
        """Execute the actions that other processes have left, if there are any."""
        left = [run.id async for run in client.runs(workflow=NAME, status=WorkflowStatus.RUNNING)]
        if left:
            self.execute(client, *left)

    async def close(self) -> None:
        """Stop executing actions, and wait until the workers have drained."""
        for task in (tasks := list(self._tasks)):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)  # each has logged its error


async def _execute(client: Client, ids: Sequence[str]) -> None:
    try:
        async with serving(client):
            for id in ids:
                with suppress(WorkflowFailedError, WorkflowCancelledError):
                    await client.finished(id, None)
    except ClosedError:
        pass  # the client was closed, and another worker resumes them
    except Exception as error:  # nothing waits for the task, so an error that is not logged here would be lost
        is_expected = isinstance(error, PerdureError)
        log.log(
            logging.WARNING if is_expected else logging.ERROR,
            "this process stopped executing %s (actions on many runs) because of an error: %s: %s; another worker that "
            "serves %s resumes what is left",
            ", ".join(ids[:3]) + (f" and {len(ids) - 3} more" if len(ids) > 3 else ""),
            type(error).__name__,
            error,
            NAME,
            exc_info=not is_expected,
            extra={"runs": ids},
        )
