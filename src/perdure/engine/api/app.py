"""Apps and clients, which a program opens. Both start and inspect runs; an app executes them as well."""

import asyncio
import os
import secrets
import signal
import socket
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from contextvars import Token
from datetime import datetime, timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, Self

from perdure.database.secret import Secret
from perdure.engine import starting
from perdure.engine.api import current, messages
from perdure.engine.api.handles import RunHandle, plain
from perdure.engine.api.queries import RunQuery
from perdure.engine.api.reading import read_runs
from perdure.engine.api.run_info import RunInfo
from perdure.engine.api.step_info import HistoryEntry, StepInfo
from perdure.engine.api.step_reading import read_history, read_steps
from perdure.engine.api.workflow import Workflow
from perdure.engine.execution.clock import steady
from perdure.engine.execution.journal import Shared
from perdure.engine.execution.slots import Slot
from perdure.engine.history.codec import decode
from perdure.engine.history.failures import cancelled, decode_failure, failed_run
from perdure.engine.history.records import STATE
from perdure.engine.replay.definitions import WORKFLOWS
from perdure.engine.replay.guard import TaskFactory
from perdure.engine.starting import StartRequest
from perdure.engine.worker.activities import Activities
from perdure.engine.worker.heartbeat import Heartbeat
from perdure.engine.worker.hooks import Hooks
from perdure.engine.worker.relay import Publisher, Relay
from perdure.engine.worker.results import Results
from perdure.engine.worker.retention import Retention, Swept, sweep
from perdure.engine.worker.stuck import UnservedWarning, oldest_due
from perdure.engine.worker.supervision import Health, Supervisor
from perdure.engine.worker.worker import Worker
from perdure.errors import (
    ClosedError,
    ConfigurationError,
    EngineError,
    StorageError,
)
from perdure.hooks import Hook
from perdure.model import limits
from perdure.model.durations import Duration, seconds
from perdure.model.limits import LEASE_MAX_SEC
from perdure.model.records import (
    HistoryEventType,
    Lease,
    WorkflowInstance,
)
from perdure.model.states import WorkflowStatus
from perdure.storage.contract import Storage
from perdure.storage.stores import SQLStorage, is_in_memory, limit_idle_transactions, open_storage

DRAIN_SEC = 10.0
HEALTH_SEC = 5.0  # a database that does not answer by then is not reachable
SIGNALS = signal.SIGTERM, signal.SIGINT


class Client:
    """Start and inspect runs without executing them: `async with Client(url) as client:`.

    - `database`: a URL such as `"sqlite:///orders.db"`, or an open storage, which stays open when the client closes.
    - `outbox`: also store the events that this client sends in the outbox, for the publisher of an App
      (default: False).

    Raises `ConfigurationError` for a URL that cannot work. A client belongs to the event loop and the process that
    opened it; elsewhere it raises `EngineError`. After it is closed it raises `ClosedError`.
    """

    def __init__(self, database: str | Storage, *, outbox: bool = False) -> None:
        _check_database(database, type(self).__name__)
        self.url: str = Secret(database) if isinstance(database, str) else ""
        if type(self) is Client and is_in_memory(self.url):
            raise ConfigurationError(
                "a Client on sqlite:///:memory: would be alone with that database, as no worker can see it: use a file "
                "(sqlite:///name.db), or open an App"
            )
        self._given_storage = None if isinstance(database, str) else database
        self.outbox_stored: Callable[[], None] | None = _nothing if outbox else None  # None: there is no outbox
        self.home: current.Home  # the event loop and process that opened the client
        self._is_open = False
        self._opened: Storage
        self._opening: AsyncExitStack
        self._supervisor: Supervisor
        self._results: Results

    async def __aenter__(self) -> Self:
        if self._is_open:
            raise EngineError(f"this {type(self).__name__} is open already: open another one, or use this one")
        async with AsyncExitStack() as opening:
            self.home = current.Home()
            self._opened = await opening.enter_async_context(self._storage_to_open())
            token = current.APP.set(self)  # before the worker starts: activities send through it
            opening.callback(_reset, token)
            self._is_open = True  # as well: the first activities may start runs while the worker still starts
            current.opened(self)
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
        current.closed(self)

    async def _enter(self, opening: AsyncExitStack) -> None:
        """Start the parts of an open client; `opening` closes them, also if a later part fails to start."""
        await starting.define(self._opened, {name: each.source_hash for name, each in WORKFLOWS.items()})
        self._supervisor = Supervisor()
        self._results = Results(self._opened, self._supervisor, alone=type(self) is Client)
        opening.push_async_callback(self._results.close)
        self._starts: Shared[WorkflowInstance, Lease | None] = Shared(self._opened.create_instances)
        self._starts.supervised = self._supervisor.watch("group commit of starts")

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave()
        await self._opening.__aexit__(kind, error, trace)

    if not TYPE_CHECKING:  # a type checker reports `with` by itself

        def __enter__(self) -> NoReturn:
            raise TypeError(f"use `async with {type(self).__name__}(…)`, not `with`: opening a database has to wait")

        def __exit__(self, *_: object) -> None: ...

    def _storage_to_open(self) -> AbstractAsyncContextManager[Storage]:
        """Return the storage of the URL, or the given storage, which its owner closes."""
        if self._given_storage is not None:
            return _borrowed(self._given_storage)
        return open_storage(self._storage_url())

    def dialect(self) -> str | None:
        """Return the kind of database ("sqlite", "postgresql" or "mysql"), or None if the storage does not say."""
        return self._opened.dialect if isinstance(self._opened, SQLStorage) else None

    def _storage_url(self) -> str:
        return self.url

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
        return self, await starting.start(self._storage, request, self._create)

    async def _create(self, instance: WorkflowInstance) -> None:
        await self._starts(instance)

    # Inspecting runs.

    def get(self, instance_id: str) -> RunHandle[Any]:
        """Return a handle on the run with this id. Nothing is read yet, so the run need not exist."""
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
        - `status`: a `WorkflowStatus`, or its value such as `"failed"`.
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

    async def info(self, instance_id: str) -> RunInfo:
        """Return status, input, result, error and everything else that is known of a run.

        Raises `RunNotFoundError` if no run has this id.
        """
        (run,) = await read_runs(self._storage, [await self._row(instance_id)], whole=True)
        return run

    async def steps(self, instance_id: str) -> list[StepInfo]:
        """Return the steps of a run that its history records. Raises `RunNotFoundError` if no run has this id."""
        await self._row(instance_id)
        return await read_steps(self._storage, instance_id)

    async def state(self, instance_id: str) -> Any:
        """Return the value that a run last passed to `set_state()`, or None."""
        event = await self._storage.get_last_event(instance_id, STATE)
        if event is None:
            await self._row(instance_id)
            return None
        return decode(event.event_data or b"{}")["state"]

    async def history(self, instance_id: str) -> AsyncIterator[HistoryEntry]:
        """Iterate over the history of a run, oldest entry first; entries are read page by page."""
        await self._row(instance_id)
        async for entry in read_history(self._storage, instance_id):
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
        warning = UnservedWarning(self._storage, instance_id)
        limit = asyncio.timeout(None if timeout is None else timeout.total_seconds())
        try:
            async with limit:
                found = await self._results.end_of(instance_id)
        except TimeoutError:
            if timeout is None or not limit.expired():
                raise
            raise TimeoutError(
                f"run {instance_id!r} has not ended after {timeout.total_seconds():g} s, and continues: ask again, or "
                "cancel() it"
            ) from None
        finally:
            warning.stop()
        if found is None:
            raise starting.not_found(instance_id)
        if found.status is WorkflowStatus.COMPLETED:
            return found.output_data or b"null"
        if found.status is WorkflowStatus.CANCELLED:
            event = await self._storage.get_last_event(instance_id, HistoryEventType.WORKFLOW_CANCELLED)
            reason = decode(event.event_data).get("reason", "") if event and event.event_data else ""
            raise cancelled(found.workflow_name, instance_id, reason)
        event = await self._storage.get_last_event(instance_id, HistoryEventType.WORKFLOW_FAILED)
        cause = decode_failure(decode(event.event_data) if event and event.event_data else {})
        raise failed_run(found.workflow_name, instance_id, cause) from cause

    async def cancel(self, instance_id: str, reason: str = "") -> None:
        """Cancel a run: no new step starts, completed steps are compensated, then the run is cancelled.

        Returns when the request is recorded, before the compensations run. Raises `WorkflowNotCancellableError` if the
        run has ended, `RunNotFoundError` if no run has this id, and `EngineError` if it belongs to another framework.
        """
        starting.refuse_foreign(await self._row(instance_id), "cancel")
        await self._storage.cancel_instance(instance_id, reason, compensate=True)

    async def retry(self, instance_id: str, *, from_step: str | None = None) -> RunHandle[Any]:
        """Start a failed or cancelled run again, as a new run with the id `<id>~r<n>`, and return its handle.

        With `from_step`, the id of a step, the new run keeps the recorded results of the steps before it
        (default: None, all steps run again). Raises `RunNotFoundError` if no run has this id, and `EngineError` if the
        run did not fail and was not cancelled, or cannot be resumed from that step.
        """
        return RunHandle((self, await starting.retry(self._storage, instance_id, from_step)), plain)

    async def sweep(self, retention: Retention, *, dry_run: bool = False) -> Swept:
        """Delete now what a retention policy no longer keeps, and return the counts.

        With `dry_run` only count it (default: False).
        """
        return await sweep(self._storage, retention, dry_run=dry_run)

    # Sending messages and events.

    async def send(self, outgoing: messages.Outgoing) -> None:
        """Store a message or an event; an event and its outbox entry are one transaction."""
        if outgoing.event is None:
            await outgoing.store(self._storage)
        else:
            async with self._storage.transaction():
                await outgoing.store(self._storage)

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


class App(Client):
    """A client that also executes runs. `async with App(url):` migrates the database and starts a worker.

    - `database`: a URL such as `"sqlite:///orders.db"`, or an open storage, which stays open when the app closes.
    - `workflows`: the workflows that this worker executes (default: all that are defined in this process).
    - `max_runs`: maximum number of runs that execute code at once; waiting runs don't count (default: 1000).
    - `max_activities`: maximum number of activities that execute at once (default: 200).
    - `max_threads`: maximum number of threads for activities that are plain functions (default: 16).
    - `max_cached_runs`: maximum number of waiting runs kept in memory to avoid their replay (default: 1000).
    - `lease`: after a worker has died, other workers resume its runs after this time (default: 15 seconds).
    - `drain_timeout`: time for running activities and hooks to finish when the app closes (default: 10 seconds).
    - `transaction_timeout`: maximum duration of a transactional activity on SQLite, where it blocks all other writers
      (default: 2 seconds).
    - `retention`: when to delete ended runs, messages and published events (default: never).
    - `publisher`: an async function that is called with each `OutboxEvent` (default: none, events have no outbox).
    - `hooks`: functions that are called with the events of `perdure.hooks` (default: none).
    - `worker_id`: the name of this worker in the database and the log; unique among all workers (default: host name,
      process id and a random part).

    Durations are seconds or timedeltas. Raises `TypeError` or `ValueError` for an invalid setting.
    """

    def __init__(
        self,
        database: str | Storage,
        *,
        workflows: Sequence[Workflow[..., Any]] | None = None,
        max_runs: int = 1000,
        max_activities: int = 200,
        max_threads: int = 16,
        max_cached_runs: int = 1000,
        lease: Duration = 15,
        drain_timeout: Duration = DRAIN_SEC,
        transaction_timeout: Duration = 2,
        retention: Retention | None = None,
        publisher: Publisher | None = None,
        hooks: Sequence[Hook] = (),
        worker_id: str | None = None,
    ) -> None:
        super().__init__(database, outbox=publisher is not None)
        del database  # a traceback shows arguments, and a URL may have a password
        _check_counts(1, max_runs=max_runs, max_activities=max_activities, max_threads=max_threads)
        _check_counts(0, max_cached_runs=max_cached_runs)
        _check_workflows(workflows)
        longest = timedelta(seconds=LEASE_MAX_SEC)
        self._lease_sec = seconds(lease, "App(lease=)", positive=True, longest=longest)
        self._drain_sec = seconds(drain_timeout, "App(drain_timeout=)")
        self._transaction_sec = seconds(
            transaction_timeout, "App(transaction_timeout=)", positive=True, longest=longest
        )
        if retention is not None and not isinstance(retention, Retention):
            raise TypeError(f"App(retention=) must be a Retention, such as Retention(finished=…), not {retention!r}")
        if publisher is not None and not callable(publisher):
            raise TypeError(
                f"App(publisher=) must be an async function that is called with an event, not {publisher!r}"
            )
        if worker_id is not None:
            limits.name(worker_id, "App(worker_id=)")
        self._publisher = publisher
        self._given = workflows
        self._limits = {"max_runs": max_runs, "resident": max_cached_runs}
        self._activities = max_activities, max_threads
        self._retention = retention
        self._hooks = Hooks(hooks)
        self.worker_id: str = worker_id or f"{socket.gethostname()[:60]}:{os.getpid()}:{secrets.token_hex(4)}"
        self._worker: Worker

    async def _enter(self, opening: AsyncExitStack) -> None:
        await super()._enter(opening)
        self._served = {each.name: each for each in self._given} if self._given is not None else WORKFLOWS
        relay = None
        if self._publisher is not None:
            relay = Relay(self._opened, self._publisher, self.worker_id)
            self.outbox_stored = relay.wake
        held = self._transaction_sec if self.dialect() == "sqlite" else None  # where a transaction blocks all writers
        self._worker = Worker(
            self._opened,
            self._served,
            self._results,
            self._hooks,
            worker_id=self.worker_id,
            lease_sec=self._lease_sec,
            activities=Activities(*self._activities, held, self._lease_sec),
            supervisor=self._supervisor,
            heartbeat=self._heartbeat,
            retention=self._retention,
            relay=relay,
            **self._limits,
        )
        self._leased: Shared[tuple[WorkflowInstance, Slot], Lease | None] = Shared(self._create_leased)
        self._leased.supervised = self._supervisor.watch("group commit of starts")
        await self._worker.start()
        self._unguard = TaskFactory.install()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        until = steady() + self._drain_sec
        await self._worker.stop(self._drain_sec)
        await self._hooks.close(0.0 if self._worker.hurried.is_set() else until - steady())
        self._unguard()
        await super().__aexit__(kind, error, trace)

    def _storage_url(self) -> str:
        """Return the URL with a limit on idle transactions, so that a frozen worker's row locks end with its leases."""
        return limit_idle_transactions(self.url, self._lease_sec)

    def _heartbeat(self, lost: Callable[[Lease], None]) -> Heartbeat:
        supervised = self._supervisor.watch("heartbeat")
        return Heartbeat(self._own_storage, self.worker_id, self._lease_sec, lost, supervised)

    def _own_storage(self) -> AbstractAsyncContextManager[Storage]:
        """Return a separate connection for the heartbeat; an in-memory database has only one, which is shared."""
        if self._given_storage is not None or is_in_memory(self.url):
            return _borrowed(self._opened)
        return open_storage(self._storage_url())

    async def _create_leased(
        self, items: Sequence[tuple[WorkflowInstance, Slot]]
    ) -> "list[Lease | StorageError | None]":
        sent = steady()
        unused = [slot for _, slot in items]
        try:
            answers = await self._storage.create_instances(
                [instance for instance, _ in items], worker_id=f"{self.worker_id}#0", timeout_sec=self._lease_sec
            )
            for (instance, _), lease in zip(items, answers, strict=True):
                if isinstance(lease, Lease):
                    self._worker.drive(instance, lease, sent, unused.pop())
        finally:
            for slot in unused:
                slot.rest()
        return answers

    async def _create(self, instance: WorkflowInstance) -> None:
        """Lease the run in the same commit if a slot is free, so that no worker has to look for it."""
        slot = self._worker.reserve_slot() if instance.workflow_name in self._served else None
        if slot is None:
            await super()._create(instance)
        else:
            await self._leased((instance, slot))

    async def start(self, request: StartRequest) -> tuple["Client", str]:
        """Store a new run, and wake the worker in case the run was not leased with its creation."""
        started = await super().start(request)
        self._worker.wake()
        return started

    async def cancel(self, instance_id: str, reason: str = "") -> None:
        """Cancel a run, and wake the worker to compensate it; see `Client.cancel`."""
        await super().cancel(instance_id, reason)
        self._worker.wake()

    async def send(self, outgoing: messages.Outgoing) -> None:
        """Store a message or an event, and wake the worker to deliver it."""
        await super().send(outgoing)
        self._worker.wake()

    async def serve(self) -> None:
        """Open the app and execute runs until SIGTERM or SIGINT, then drain and close it.

        While the app drains, running activities may finish within `drain_timeout`; all other work is released for
        other workers at once. A second signal ends the draining immediately. Raises `EngineError` if a background task
        keeps failing.
        """
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()

        def stop_or_hurry() -> None:
            if stop.is_set() and (worker := getattr(self, "_worker", None)) is not None:
                worker.hurried.set()
            stop.set()

        for number in SIGNALS:
            loop.add_signal_handler(number, stop_or_hurry)
        try:
            async with self:
                await self._work_until(stop)
        finally:
            for number in SIGNALS:
                loop.remove_signal_handler(number)

    async def _work_until(self, stop: asyncio.Event) -> None:
        stopped, broken = asyncio.create_task(stop.wait()), asyncio.create_task(self._supervisor.failure())
        try:
            await asyncio.wait([stopped, broken], return_when="FIRST_COMPLETED")
            if broken.done():
                broken.result()
        finally:
            stopped.cancel()
            broken.cancel()


def _reset(token: "Token[Client | None]") -> None:
    with suppress(ValueError):  # left in another context
        current.APP.reset(token)


@asynccontextmanager
async def _borrowed(storage: Storage) -> AsyncIterator[Storage]:
    yield storage


def _check_database(database: object, kind: str) -> None:
    if isinstance(database, str):
        return
    if not hasattr(database, "create_instances"):
        raise TypeError(
            f"{kind}(…) takes a database URL, such as 'sqlite:///orders.db', or an open storage, not {database!r}"
        )
    if isinstance(database, SQLStorage) and not database.is_open:
        raise EngineError(
            f"the storage given to {kind}(…) is not open: use `async with open_storage(url) as storage:` around it"
        )


def _check_counts(least: int, **settings: object) -> None:
    for name, value in settings.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise ValueError(f"App({name}=) must be a whole number of at least {least}, not {value!r}")


def _check_workflows(workflows: object) -> None:
    if workflows is None:
        return
    if isinstance(workflows, Workflow) or not isinstance(workflows, Sequence):
        raise TypeError(f"App(workflows=) must be a list of workflows, not {workflows!r}")
    for each in workflows:
        if not isinstance(each, Workflow):
            raise TypeError(f"App(workflows=) must be a list of workflows, and {each!r} is none: use @workflow")


def _nothing() -> None:
    """Do nothing: a client has no relay to wake."""
