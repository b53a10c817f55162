"""Clients for blocking programs: scripts, Flask, Django, notebooks.

A SyncClient passes its calls to a `Client` on an event loop in a thread of its own (`background.py`).
"""

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from contextvars import Token
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, ParamSpec, Self, TypeVar

from perdure.codecs.pipeline import Codecs
from perdure.database.dialects import new_driver
from perdure.database.secret import Secret
from perdure.engine.api import current, current_sync, messages
from perdure.engine.api.background import Background
from perdure.engine.api.client import UNUSED_AFTER, Client, storage_of
from perdure.engine.api.client_thread import ThreadClient, Work
from perdure.engine.api.handles import plain
from perdure.engine.api.run_info import RunInfo
from perdure.engine.api.step_info import HistoryEntry, StepInfo
from perdure.engine.api.step_reading import read_history_page
from perdure.engine.api.sync_handles import SyncRunHandle
from perdure.engine.api.sync_queries import SyncRunQuery
from perdure.engine.api.workflow import Startable, Workflow, start_with
from perdure.engine.execution.clock import steady
from perdure.engine.interception import Interceptor, Send, Start, around_send, interception_of
from perdure.engine.replay import context
from perdure.engine.starting import StartRequest, new_id
from perdure.engine.worker.retention import Retention, Swept
from perdure.engine.worker.supervision import Health
from perdure.errors import EngineError, NotDurableError
from perdure.model.durations import Duration
from perdure.model.states import WorkflowStatus

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class SyncClient:
    """Start, inspect, cancel and retry runs, and send messages, in programs that block: `with SyncClient(url) as c:`.

    - `database`: a URL such as `"sqlite:///orders.db"`.
    - `outbox`: also store the events that this client sends in the outbox, for the publisher of an App
      (default: False).
    - `codec`: how values are stored, such as `Encrypted(keys)`: a codec of `perdure.codecs`, or a list of them
      (default: as JSON). Use the same one in all processes.
    - `interceptors`: code around the starts and messages of this client, but not around `retry()`, in the thread of the
      caller; see `perdure.interceptors` (default: none).

    It executes no runs; a worker process does (`App`). A SyncClient can also be made once for the whole program and
    used without `with`: it connects at its first call, in each process, and `close()` or the exit of the process closes
    it. Threads can share it, and so can processes that are forked. Raises `ConfigurationError` for a URL that cannot
    work, `ClosedError` after it is closed, and `EngineError` in a coroutine that runs on the event loop of an open App.
    """

    def __init__(
        self,
        database: str,
        *,
        outbox: bool = False,
        codec: Codecs | None = None,
        interceptors: Sequence[Interceptor] = (),
    ) -> None:
        self.interception = interception_of(interceptors)
        if not isinstance(database, str):
            raise TypeError(
                f"SyncClient(…) takes a database URL, such as 'sqlite:///orders.db', not a {type(database).__name__}; "
                "an open storage belongs to the event loop that opened it"
            )
        url = Secret(database)
        del database  # a traceback shows arguments, and a URL may have a password
        new_client = partial(ThreadClient, url, outbox=outbox, codec=codec)
        self._unopened: Client = new_client()  # raises if the URL cannot work
        self.pipeline = self._unopened.pipeline
        driver = new_driver(url)
        self.dialect: str = driver.name
        self._made_at = _place(inspect.currentframe())
        self._has_schemas = driver.features.schemas
        self._background = Background(new_client, ends_at_fork=driver.features.locks_of_process)
        self._entered: Token[SyncClient | None] | None = None
        self._has_entered = False
        current_sync.opened(self)

    def __repr__(self) -> str:
        return f"<SyncClient of {self.dialect}, made at {self._made_at}>"

    def __enter__(self) -> Self:
        self._call(_nothing)  # connects, so that a wrong URL or an unavailable database is noticed here
        if self._has_entered:
            raise EngineError(
                "this SyncClient was entered already, and `with` closes it at the end: make another one, or use it "
                "without `with` and close() it when the program ends"
            )
        self._has_entered = True
        self._entered = current_sync.ENTERED.set(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._entered is not None:
            with suppress(ValueError):  # left in another context
                current_sync.ENTERED.reset(self._entered)
        self.close()

    if not TYPE_CHECKING:  # a type checker reports `async with` without this

        def __aenter__(self) -> NoReturn:
            raise TypeError("use `with SyncClient(…)`, not `async with`; in a coroutine use `async with Client(…)`")

        def __aexit__(self, *_: object) -> None: ...

    def close(self) -> None:
        """Close the connections and end the thread. Calls that wait in other threads raise `ClosedError`.

        Runs are not affected. It may be called again.
        """
        current_sync.closed(self)
        self._background.close()

    def _call(self, work: Work[T], *, is_wait: bool = False) -> T:
        """Run a coroutine on the client in the background and return its result."""
        if context.current_run() is not None:
            raise NotDurableError("a SyncClient was used in a workflow's body: use it in an activity")
        if current.is_served_here():
            raise EngineError(
                "a SyncClient was called in a coroutine on the event loop of an open App, whose worker could not "
                "execute anything meanwhile: use `await` and the App instead, or call it in a thread with "
                "asyncio.to_thread(…)"
            )
        return self._background.call(work, is_wait=is_wait)

    # Starting.

    def start(self, workflow: Startable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> SyncRunHandle[R]:
        """Start a run of a workflow, with or without options, and return a handle on it.

        `client.start(order.options(id="order-1"), "A-1")` does the same as
        `order.options(id="order-1").start_sync("A-1")`, and names the client, for programs that use several. The run is
        stored when this returns. Raises `TypeError` if the arguments don't match the function's parameters and type
        hints, and `RunExistsError` if a different run has the id.
        """
        if not isinstance(workflow, Startable):
            raise TypeError(f"start() takes a workflow and its arguments, not {workflow!r}: use @workflow")
        return start_with(self, workflow, args, kwargs)

    def start_request(self, request: StartRequest) -> str:
        """Store a new run, or find the existing run with the requested id, and return its id; see `start`."""

        async def start(client: Client, request: StartRequest = request) -> str:
            return (await client.start(request))[1]

        if self.interception is None:
            return self._call(start)
        # In this thread, whose context variables the interceptors need, and not in that of the client.
        about = Start(request.workflow_name, "start", request.id or new_id(), dict(request.headers))
        with self.interception.start(about):
            ready = replace(request, id=about.run_id, headers=about.stored_headers())
            return self._call(lambda client: start(client, ready))

    def schema(self) -> str:
        """Return the PostgreSQL schema that holds the tables; an empty string on other databases.

        It connects only to PostgreSQL: a caller's open transaction on SQLite would block that.
        """

        async def schema(client: Client) -> str:
            return client.schema()

        return self._call(schema) if self._has_schemas else ""

    # Inspecting runs.

    def get(self, instance_id: str) -> SyncRunHandle[Any]:
        """Return a handle on the run with this id. Nothing is read yet, so the run need not exist."""
        if not isinstance(instance_id, str):
            raise TypeError(f"get() takes the id of a run, which is a text, not {instance_id!r}")
        return SyncRunHandle(self, instance_id, plain)

    def runs(
        self,
        *,
        workflow: Workflow[..., Any] | str | None = None,
        status: WorkflowStatus | str | None = None,
        stuck: bool = False,
        where: Mapping[str, str | bool | int | float | None] | None = None,
        started_after: datetime | None = None,
        started_before: datetime | None = None,
    ) -> SyncRunQuery:
        """Return a query for the runs that match all given filters, newest first.

        - `workflow`: the workflow, or its name.
        - `status`: a `WorkflowStatus`, or its value such as `"failed"`; `"waiting"` means any of the three waits.
        - `stuck`: only stuck runs, those that have been stuck longest first (default: False).
        - `where`: values at JSON paths of the input, such as `{"order.id": "A-1"}`. It needs `workflow`, `status`,
          `started_after` or `stuck` as well, because it reads the inputs of all runs that the other filters leave.
        - `started_after`, `started_before`: datetimes with a time zone.

        Nothing is read until the query is used: iterate over it with `for`, or call the methods of `SyncRunQuery`.
        Raises `ValueError` for an unknown status, a datetime without a time zone, or `where` alone.
        """
        filters: dict[str, Any] = {
            "workflow": workflow,
            "status": status,
            "stuck": stuck,
            "where": where,
            "started_after": started_after,
            "started_before": started_before,
        }
        self._unopened.runs(**filters)  # raises for wrong filters
        return SyncRunQuery(lambda work: self._call(lambda client: work(client.runs(**filters))))

    def health(self) -> Health:
        """Return the state of the database and of the background tasks, and the age of the oldest due work.

        An unavailable database raises nothing once the client has connected: `Health.database` is False.
        """
        return self._call(lambda client: client.health())

    def info(self, instance_id: str) -> RunInfo:
        """Return status, input, result, error and everything else that is known of a run.

        Raises `RunNotFoundError` if no run has this id.
        """
        return self._call(lambda client: client.info(instance_id))

    def steps(self, instance_id: str) -> list[StepInfo]:
        """Return the steps of a run that its history records. Raises `RunNotFoundError` if no run has this id."""
        return self._call(lambda client: client.steps(instance_id))

    def state(self, instance_id: str) -> Any:
        """Return the value that a run last passed to `set_state()`, or None."""
        return self._call(lambda client: client.state(instance_id))

    def history(self, instance_id: str) -> Iterator[HistoryEntry]:
        """Iterate over the history of a run, oldest entry first; entries are read page by page."""
        self._call(lambda client: client.check_run(instance_id))
        after, more = 0, True
        while more:
            page, more = self._history_page(instance_id, after)
            yield from page
            after = page[-1].id if page else after

    def _history_page(self, instance_id: str, after_id: int) -> tuple[list[HistoryEntry], bool]:
        return self._call(lambda client: read_history_page(storage_of(client), instance_id, after_id))

    def finished(self, instance_id: str, timeout: timedelta | None) -> bytes:
        """Wait until a run has ended and return its result as JSON; see `SyncRunHandle.result` for what it raises."""
        left, until = timeout, None if timeout is None else steady() + timeout.total_seconds()

        async def wait(client: Client) -> bytes:
            nonlocal left
            given = left
            if until is not None:
                left = timedelta(seconds=max(0.0, until - steady()))  # if the wait is repeated after a fork
            return await client.finished(instance_id, given)

        return self._call(wait, is_wait=True)

    def cancel(self, instance_id: str, reason: str = "") -> None:
        """Cancel a run: no new step starts, completed steps are compensated, then the run is cancelled.

        Returns when the request is recorded, before the compensations run. Raises `WorkflowNotCancellableError` if the
        run has ended, `RunNotFoundError` if no run has this id, and `EngineError` if it belongs to another framework.
        """
        self._call(lambda client: client.cancel(instance_id, reason))

    def retry(self, instance_id: str, *, from_step: str | None = None) -> SyncRunHandle[Any]:
        """Start a failed or cancelled run again, as a new run with the id `<id>~r<n>`, and return its handle.

        With `from_step`, the id of a step, the new run keeps the recorded results of the steps before it
        (default: None, all steps run again). Raises `RunNotFoundError` if no run has this id, and
        `RunNotRetryableError` if the run did not fail and was not cancelled, or cannot be resumed from that step.
        """
        retried = self._call(lambda client: client.retry(instance_id, from_step=from_step))
        return SyncRunHandle(self, retried.id, plain)

    def codecs_in_use(self) -> dict[str, int]:
        """Return how many stored values need each codec, by its name and note; see `Client.codecs_in_use`."""
        return self._call(lambda client: client.codecs_in_use())

    def delete_unused_blobs(self, older_than: Duration = UNUSED_AFTER) -> int:
        """Delete blobs that no stored value refers to, and return their number; see `Client.delete_unused_blobs`."""
        return self._call(lambda client: client.delete_unused_blobs(older_than))

    def sweep(self, retention: Retention, *, dry_run: bool = False) -> Swept:
        """Delete now what a retention policy no longer keeps, and return the counts.

        With `dry_run` only count it (default: False).
        """
        return self._call(lambda client: client.sweep(retention, dry_run=dry_run))

    # Sending messages and events.

    def publish(self, channel: str, data: object, *, metadata: Mapping[str, object] | None = None) -> None:
        """Send a message to all runs that are subscribed to a channel.

        - `data`: any value that can be encoded as JSON.
        - `metadata`: further values, which `Message.metadata` returns (default: none).

        Raises `SerializationError` if a value cannot be encoded.
        """
        self._send(messages.message(channel, data, metadata))

    def send_to(
        self, instance_id: str, channel: str, data: object, *, metadata: Mapping[str, object] | None = None
    ) -> None:
        """Send a message to one run. It is stored until the run receives it; if the run has ended, it is dropped.

        Raises `RunNotFoundError` if no run has this id, and `SerializationError` if `data` cannot be encoded.
        """
        self._send(messages.message(channel, data, metadata, to=instance_id))

    def send_event(
        self,
        type: str,
        data: object,
        *,
        to: str | None = None,
        source: str = "",
        id: str | None = None,
        subject: str | None = None,
    ) -> None:
        """Send an event to the runs that wait for its type, or with `to` to one run; see `perdure.send_event`."""
        outbox_stored = self._unopened.outbox_stored
        self._send(
            messages.event(type, data, to=to, source=source, id=id, subject=subject, outbox_stored=outbox_stored)
        )

    def _send(self, outgoing: messages.Outgoing) -> None:
        """Store a message or an event; interceptors run in this thread."""
        about = Send(outgoing.kind, outgoing.name, outgoing.to, dict(context.inherited_headers()))
        with around_send(self.interception, about):
            ready = replace(outgoing, headers=about.stored_headers())
            self._call(lambda client: client.send(ready))


async def _nothing(client: Client) -> None:
    """Do nothing: the client is open."""


def _place(frame: FrameType | None) -> str:
    """Return the file and line that made a client: what tells clients apart, because a URL may have a password."""
    while frame is not None and frame.f_code.co_filename == __file__:
        frame = frame.f_back
    return "an unknown place" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"
