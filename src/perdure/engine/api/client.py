"""Clients: start and inspect runs of a database. An app is a client that executes runs as well; see `app.py`."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from contextvars import Token
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, Self, TypeVar, overload

from perdure.codecs.offloading import Offloaded
from perdure.codecs.pipeline import Codecs, Pipeline
from perdure.engine import starting
from perdure.engine.api import current, messages
from perdure.engine.api.database import Database
from perdure.engine.api.handles import RunHandle, plain
from perdure.engine.api.history_rows import state_of
from perdure.engine.api.queries import RunQuery
from perdure.engine.api.reading import read_runs
from perdure.engine.api.run_info import RunInfo
from perdure.engine.api.step_info import HistoryEntry, StepInfo
from perdure.engine.api.step_reading import read_history, read_steps
from perdure.engine.api.sync_handles import SyncRunHandle, decoder_of
from perdure.engine.api.values import shown
from perdure.engine.api.workflow import Workflow
from perdure.engine.execution.clock import Clock, SystemClock
from perdure.engine.execution.group_commit import GroupCommit
from perdure.engine.history.codec import decode
from perdure.engine.history.failures import cancelled, decode_failure, failed_run
from perdure.engine.interception import Interceptor, interception_of
from perdure.engine.replay import context
from perdure.engine.replay.definitions import WORKFLOWS
from perdure.engine.replay.stubs import StubScope, scope_of_app
from perdure.engine.starting import StartRequest
from perdure.engine.worker.activities import CONFLICTS_MAX
from perdure.engine.worker.results import Ended, Results
from perdure.engine.worker.retention import Retention, Swept, sweep
from perdure.engine.worker.starts import STARTS
from perdure.engine.worker.stuck import UnservedWarning, oldest_due
from perdure.engine.worker.supervision import Health, Supervisor
from perdure.errors import ClosedError, ConfigurationError, EngineError, StorageError, TransactionConflictError
from perdure.model.durations import Duration, span
from perdure.model.envelopes import check_readable, decoding_messages, unreadable
from perdure.model.records import HistoryEventType, WorkflowInstance
from perdure.model.states import WorkflowStatus
from perdure.storage.contract import Storage
from perdure.storage.encoded_rows import encoded_tags
from perdure.storage.encoding import encoding
from perdure.storage.stores import SQLStorage

R = TypeVar("R")

UNUSED_AFTER = timedelta(days=1)
UNUSED_MIN = timedelta(hours=1)
HEALTH_SEC = 5.0  # a database that does not answer by then is not reachable


class Client:
    """Start, inspect, cancel and retry runs, and send messages, without executing runs: `async with Client(url) as c:`.

    - `database`: a URL such as `"sqlite:///orders.db"`, or an open storage, which stays open when the client closes.
    - `outbox`: also store the events that this client sends in the outbox, for the publisher of an App
      (default: False).
    - `codec`: how values are stored, such as `Encrypted(keys)`: a codec of `perdure.codecs`, or a list of them
      (default: as JSON). Use the same one in all processes.
    - `interceptors`: code around the starts and messages of this client; see `perdure.interceptors` (default: none).

    Raises `ConfigurationError` for a URL that cannot work. A client belongs to the event loop and the process that
    opened it; elsewhere it raises `EngineError`. After it is closed it raises `ClosedError`.
    """

    has_worker = False  # in the same process; an App has one

    def __init__(
        self,
        database: str | Storage,
        *,
        outbox: bool = False,
        codec: Codecs | None = None,
        interceptors: Sequence[Interceptor] = (),
    ) -> None:
        self.pipeline = None if codec is None else Pipeline(codec)
        self.interception = interception_of(interceptors)
        self._database = self._new_database(database)
        self.url = self._database.url
        self._clock = self._new_clock()
        if not self.has_worker and self._database.in_memory:
            raise ConfigurationError(
                f"a {self._database.owner} on sqlite:///:memory: would be alone with that database, as no worker can "
                "see it: use a file (sqlite:///name.db), or open an App"
            )
        self.outbox_stored: Callable[[], None] | None = _nothing if outbox else None  # None: there is no outbox
        self.home: current.Home  # the event loop and process that opened the client
        self.stub_scope: StubScope
        self._is_open = False
        self._opened: Storage
        self._opening: AsyncExitStack
        self._supervisor: Supervisor
        self._results: Results
        self._create: starting.Create  # stores a new run

    def _new_database(self, given: str | Storage) -> Database:
        """Return what opens the storage of this client."""
        return Database(given, type(self).__name__)

    def _new_clock(self) -> Clock:
        """Return the clock of this client; tests have clocks of their own."""
        return SystemClock()

    async def __aenter__(self) -> Self:
        if self._is_open:
            raise EngineError(f"this {type(self).__name__} is open already: open another one, or use this one")
        async with AsyncExitStack() as opening:
            self.home = current.Home()
            self._opened = await opening.enter_async_context(self._database.open())
            if self.pipeline is not None:
                opening.enter_context(decoding_messages(self.pipeline.decode))
                self._opened = encoding(self._opened, self.pipeline)
            token = current.APP.set(self)  # before the worker starts: activities send through it
            opening.callback(_reset, token)
            self.stub_scope = opening.enter_context(scope_of_app(self._clock.sleep))
            self._is_open = True  # as well: the first activities may start runs while the worker still starts
            self._announce()
            try:
                await self._enter(opening)
            except BaseException:
                self._leave()
                raise
            self._opening = opening.pop_all()
        return self

    def _leave(self) -> None:
        """Refuse further use."""
        self._is_open = False
        self._withdraw()

    def _announce(self) -> None:
        """Let calls that name no client use this one."""
        current.opened(self)

    def _withdraw(self) -> None:
        """Let calls that name no client use this one no longer."""
        current.closed(self)

    async def _enter(self, opening: AsyncExitStack) -> None:
        """Start the parts of an open client; `opening` closes them, also if a later part fails to start."""
        await starting.define(self._opened, {name: each.source_hash for name, each in WORKFLOWS.items()})
        self._supervisor = Supervisor()
        self._results = Results(self._opened, self._supervisor, alone=not self.has_worker)
        opening.push_async_callback(self._results.close)
        starts = GroupCommit(self._opened.create_instances, self._supervisor.watch(STARTS))
        opening.push_async_callback(starts.ended)
        self._create = starts

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave()
        await self._opening.__aexit__(kind, error, trace)

    if not TYPE_CHECKING:  # a type checker reports `with` without this

        def __enter__(self) -> NoReturn:
            raise TypeError(f"use `async with {type(self).__name__}(…)`, not `with`: opening a database has to wait")

        def __exit__(self, *_: object) -> None: ...

    @property
    def is_open(self) -> bool:
        """Return whether the App or Client is open."""
        return self._is_open

    def dialect(self) -> str | None:
        """Return the kind of database ("sqlite", "postgresql" or "mysql"), or None if the storage does not say."""
        return self._opened.dialect if isinstance(self._opened, SQLStorage) else None

    def schema(self) -> str:
        """Return the PostgreSQL schema that holds the tables; an empty string on other databases."""
        return self._opened.schema if isinstance(self._opened, SQLStorage) else ""

    @property
    def _storage(self) -> Storage:
        """Return the storage; raise `EngineError` on another loop or process, or before opening or after closing."""
        self._check_home()
        return self._opened

    def _check_home(self) -> None:
        name = type(self).__name__
        if not hasattr(self, "_opened"):
            raise EngineError(f"this {name} is not open yet: use it inside `async with {name}(…) as {name.lower()}:`")
        self.home.check(name)
        if not self._is_open:
            raise ClosedError(f"this {name} is closed: use it inside its `async with` block")

    # Starting.

    async def start(self, request: StartRequest) -> tuple["Client", str]:
        """Store a new run, or find the existing run with the requested id; see `Workflow.start`."""
        started = await starting.start(self._storage, request, self._create, self.interception)
        self._started()
        return self, started

    def _started(self) -> None:
        """Let the worker of this process consider when a new run is due, unless it executes the run already."""

    def _wake(self) -> None:
        """Let the worker of this process look for work, because there may be some; a client has no worker."""

    # Inspecting runs.

    @overload
    def get(self, instance_id: str) -> RunHandle[Any]: ...

    @overload
    def get(self, instance_id: SyncRunHandle[R]) -> RunHandle[R]: ...

    def get(self, instance_id: str | SyncRunHandle[Any]) -> RunHandle[Any]:
        """Return a handle on the run with this id, or on the run of a handle that `start_sync()` returned.

        Nothing is read yet, so the run need not exist.
        """
        if isinstance(instance_id, SyncRunHandle):
            return RunHandle((self, instance_id.id), decoder_of(instance_id))
        if not isinstance(instance_id, str):
            raise TypeError(f"get() takes the id of a run, which is a text, not {instance_id!r}")
        return RunHandle((self, instance_id), plain)

    def runs(
        self,
        *,
        workflow: Workflow[..., Any] | str | None = None,
        status: WorkflowStatus | str | None = None,
        stuck: bool = False,
        where: Mapping[str, str | bool | int | float | None] | None = None,
        started_after: datetime | None = None,
        started_before: datetime | None = None,
    ) -> RunQuery:
        """Return a query for the runs that match all given filters, newest first.

        - `workflow`: the workflow, or its name.
        - `status`: a `WorkflowStatus`, or its value such as `"failed"`; `"waiting"` means any of the three waits.
        - `stuck`: only stuck runs, those that have been stuck longest first (default: False).
        - `where`: values at JSON paths of the input, such as `{"order.id": "A-1"}`. It needs `workflow`, `status`,
          `started_after` or `stuck` as well, because it reads the inputs of all runs that the other filters leave.
        - `started_after`, `started_before`: datetimes with a time zone.

        Nothing is read until the query is used: iterate over it with `async for`, or call the methods of `RunQuery`.
        Raises `ValueError` for an unknown status, a datetime without a time zone, or `where` alone.
        """
        return RunQuery(
            self,
            workflow=workflow.name if isinstance(workflow, Workflow) else workflow,
            status=status,
            stuck=stuck,
            where=where,
            started_after=started_after,
            started_before=started_before,
        )

    async def health(self) -> Health:
        """Return the state of the database and of the background tasks, and the age of the oldest due work.

        An unavailable database raises nothing: `Health.database` is False.
        """
        try:
            async with asyncio.timeout(HEALTH_SEC):
                pending = await self._storage.pending_migrations()
                oldest = await oldest_due(self._storage)
        except (StorageError, TimeoutError):
            return Health(False, self._supervisor.tasks())
        return Health(True, self._supervisor.tasks(), not pending, None if oldest is None else oldest.total_seconds())

    async def failure(self) -> None:
        """Wait until a background task has failed too often in a row, and raise `EngineError`."""
        self._check_home()
        await self._supervisor.failure()

    async def info(self, instance_id: str) -> RunInfo:
        """Return status, input, result, error and everything else that is known of a run.

        Raises `RunNotFoundError` if no run has this id.
        """
        (run,) = await read_runs(self._storage, [await self._row(instance_id)], whole=True)
        return run

    async def steps(self, instance_id: str) -> list[StepInfo]:
        """Return the steps of a run that its history records. Raises `RunNotFoundError` if no run has this id."""
        return await read_steps(self._storage, await self._row(instance_id))

    async def state(self, instance_id: str) -> Any:
        """Return the value that a run last passed to `set_state()`, or None."""
        return await state_of(self._storage, await self._row(instance_id))

    async def history(self, instance_id: str) -> AsyncIterator[HistoryEntry]:
        """Iterate over the history of a run, oldest entry first; entries are read page by page."""
        async for entry in read_history(self._storage, await self._row(instance_id)):
            yield entry

    async def check_run(self, instance_id: str) -> None:
        """Raise `RunNotFoundError` if no run has this id."""
        await self._row(instance_id)

    async def _row(self, instance_id: str) -> WorkflowInstance:
        found = await self._storage.get_instance(instance_id)
        if found is None:
            raise starting.not_found(instance_id)
        return found

    async def finished(self, instance_id: str, timeout: timedelta | None) -> bytes:
        """Wait until a run has ended and return its result as JSON; see `RunHandle.result` for what it raises."""
        self._check_home()
        # A run that is executed here is served, and most results are waited for only a moment.
        warning = None if self._results.is_local(instance_id) else UnservedWarning(self._storage, instance_id)
        end = self._results.end_of(instance_id)
        try:
            found = await (end if timeout is None else self._within(timeout.total_seconds(), instance_id, end))
        finally:
            if warning is not None:
                warning.stop()
        if found is None:
            raise starting.not_found(instance_id)
        if found.status is WorkflowStatus.COMPLETED:
            check_readable(found.output_data, f"the result of run {instance_id!r}")
            return found.output_data or b"null"
        if found.status is WorkflowStatus.CANCELLED:
            event = await self._storage.get_last_event(instance_id, HistoryEventType.WORKFLOW_CANCELLED)
            reason = decode(event.event_data).get("reason", "") if event and event.event_data else ""
            raise cancelled(found.workflow_name, instance_id, shown(reason))
        event = await self._storage.get_last_event(instance_id, HistoryEventType.WORKFLOW_FAILED)
        cause: BaseException
        if event is not None and (hidden := unreadable(event.event_data)) is not None:
            cause = hidden.error(f"the error of run {instance_id!r}")
        else:
            cause = decode_failure(decode(event.event_data) if event and event.event_data else {})
        raise failed_run(found.workflow_name, instance_id, cause) from cause

    async def _within(self, seconds: float, instance_id: str, end: Coroutine[Any, Any, Ended | None]) -> Ended | None:
        """Wait for the end of a run for so long."""
        limit = self._clock.timeout(seconds)
        try:
            async with limit:
                return await end
        except TimeoutError:
            if not limit.expired():
                raise
            raise TimeoutError(
                f"run {instance_id!r} has not ended after {seconds:g} s, and continues: ask again, or cancel() it"
            ) from None

    async def cancel(self, instance_id: str, reason: str = "") -> None:
        """Cancel a run: no new step starts, completed steps are compensated, then the run is cancelled.

        Returns when the request is recorded, before the compensations run. Raises `WorkflowNotCancellableError` if the
        run has ended, `RunNotFoundError` if no run has this id, and `EngineError` if it belongs to another framework.
        """
        starting.refuse_foreign(await self._row(instance_id), "cancel")
        await self._storage.cancel_instance(instance_id, reason, compensate=True)
        self._wake()

    async def retry(self, instance_id: str, *, from_step: str | None = None) -> RunHandle[Any]:
        """Start a failed or cancelled run again, as a new run with the id `<id>~r<n>`, and return its handle.

        With `from_step`, the id of a step, the new run keeps the recorded results of the steps before it
        (default: None, all steps run again). Raises `RunNotFoundError` if no run has this id, and
        `RunNotRetryableError` if the run did not fail and was not cancelled, or cannot be resumed from that step.
        """
        return RunHandle((self, await starting.retry(self._storage, instance_id, from_step, self.interception)), plain)

    async def _retry_once(self, instance_id: str) -> bool:
        """Start a failed or cancelled run again unless that was done before; return whether it was started."""
        return await starting.retry_once(self._storage, instance_id, self.interception) is not None

    async def sweep(self, retention: Retention, *, dry_run: bool = False) -> Swept:
        """Delete now what a retention policy no longer keeps, and return the counts.

        With `dry_run` only count it (default: False).
        """
        return await sweep(self._storage, retention, dry_run=dry_run)

    # Codecs.

    async def codecs_in_use(self) -> dict[str, int]:
        """Return how many stored values need each codec, by its name and note, such as `{"aes256gcm:k1": 120}`.

        A key that is not in it is no longer needed, once no process encrypts with it. Reads the beginnings of all
        values. Raises `ConfigurationError` if the storage is not that of a database.
        """
        found: dict[str, int] = {}
        async for tags in encoded_tags(self._sql_storage()):
            for tag in tags:
                name = tag.name if tag.name == Offloaded.name else str(tag)
                found[name] = found.get(name, 0) + 1
        return found

    async def delete_unused_blobs(self, older_than: Duration = UNUSED_AFTER) -> int:
        """Delete blobs that no stored value refers to, because retention has deleted it; return their number.

        `older_than` protects blobs whose row is not committed yet: at least an hour (default: a day). It reads the
        beginnings of all values. Raises `ConfigurationError` if this App or Client has no `Offloaded` codec.
        """
        age = span(older_than, "delete_unused_blobs(older_than=)")
        if age < UNUSED_MIN:
            raise ValueError(f"delete_unused_blobs(older_than=) must be at least an hour, not {older_than!r}")
        store = None if self.pipeline is None else self.pipeline.blobs
        if store is None:
            raise ConfigurationError("there are no blobs to delete: this App or Client has no codec Offloaded(store)")
        before = datetime.now(UTC) - age
        unused = {blob.name for blob in await asyncio.to_thread(lambda: list(store.list())) if blob.stored_at < before}
        async for tags in encoded_tags(self._sql_storage()):
            unused.difference_update(tag.note for tag in tags if tag.name == Offloaded.name)
        return sum([await asyncio.to_thread(store.delete, name, before) for name in sorted(unused)])

    def _sql_storage(self) -> SQLStorage:
        if not isinstance(storage := self._storage, SQLStorage):
            raise ConfigurationError(
                f"the values of {storage!r} cannot be searched: this needs a storage of a database"
            )
        return storage

    # Sending messages and events.

    async def send(self, *outgoing: messages.Outgoing) -> None:
        """Store messages and events with their outbox entries and the runs that they start, in one transaction."""
        headers = context.inherited_headers()
        if headers or self.interception is not None:
            given = [replace(each, headers=headers or each.headers) for each in outgoing]
            outgoing = tuple(replace(each, interception=self.interception) for each in given)
        runs = [run for each in outgoing for run in each.new_runs()]
        if len(outgoing) == 1 and outgoing[0].event is None and not runs:
            await outgoing[0].store(self._storage)
        else:
            await self._store_together(outgoing)
        for each in outgoing:
            self._sent(each.message.channel)
        if runs:
            self._wake()

    async def _store_together(self, outgoing: Sequence[messages.Outgoing]) -> None:
        """Store messages in one transaction, which is repeated if the database aborts it because of a conflict."""
        ordered = sorted(outgoing, key=lambda each: each.message.channel)  # the order in which channels are locked
        for tries_left in reversed(range(CONFLICTS_MAX)):
            try:
                async with self._storage.transaction():
                    await messages.store_all(self._storage, ordered)
                return
            except TransactionConflictError:
                if not tries_left or self._storage.in_transaction():
                    raise

    def _sent(self, channel: str) -> None:
        """Let the worker of this process deliver a message now; a client has no worker."""

    async def publish(self, channel: str, data: object, *, metadata: Mapping[str, object] | None = None) -> None:
        """Send a message to all runs that are subscribed to a channel.

        - `data`: any value that can be encoded as JSON.
        - `metadata`: further values, which `Message.metadata` returns (default: none).

        Raises `SerializationError` if a value cannot be encoded.
        """
        await self.send(messages.message(channel, data, metadata))

    async def send_to(
        self, instance_id: str, channel: str, data: object, *, metadata: Mapping[str, object] | None = None
    ) -> None:
        """Send a message to one run. It is stored until the run receives it; if the run has ended, it is dropped.

        Raises `RunNotFoundError` if no run has this id, and `SerializationError` if `data` cannot be encoded.
        """
        await self.send(messages.message(channel, data, metadata, to=instance_id))

    async def send_event(
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
        outbox_stored = self.outbox_stored
        await self.send(
            messages.event(type, data, to=to, source=source, id=id, subject=subject, outbox_stored=outbox_stored)
        )


async def retry_once(client: Client, run_id: str) -> bool:
    """Start a failed or cancelled run again unless that was done before; return whether it was started."""
    return await client._retry_once(run_id)


def storage_of(client: Client) -> Storage:
    """Return the open storage of a client; raise what every call of the client raises if it cannot be used here."""
    return client._storage


def _reset(token: "Token[Client | None]") -> None:
    with suppress(ValueError):  # left in another context
        current.APP.reset(token)


def _nothing() -> None:
    """Do nothing: a client has no relay to wake."""
