"""Apps and clients: what a program opens. Both start runs and look at them; an app drives them as well."""

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
from perdure.engine import ambient, messages, starting
from perdure.engine.activities import Activities
from perdure.engine.body import STATE
from perdure.engine.clock import steady
from perdure.engine.codec import decode
from perdure.engine.definitions import WORKFLOWS, Workflow
from perdure.engine.durations import Duration, seconds
from perdure.engine.failures import cancelled, decode_failure, failed_run
from perdure.engine.guard import TaskFactory
from perdure.engine.handles import RunHandle, StartRequest, plain
from perdure.engine.heartbeat import Heartbeat
from perdure.engine.hooks import Hooks
from perdure.engine.journal import Shared
from perdure.engine.queries import RunQuery
from perdure.engine.reading import read_history, read_runs, read_steps
from perdure.engine.relay import Publisher, Relay
from perdure.engine.results import Results
from perdure.engine.retention import Retention, Swept, sweep
from perdure.engine.run_info import RunInfo
from perdure.engine.slots import Slot
from perdure.engine.step_info import HistoryEntry, StepInfo
from perdure.engine.stuck import UnservedWarning, oldest_due
from perdure.engine.supervision import Health, Supervisor
from perdure.engine.worker import Worker
from perdure.errors import (
    ClosedError,
    ConfigurationError,
    EngineError,
    StorageError,
)
from perdure.hooks import Hook
from perdure.integrations.starts import define
from perdure.model import limits
from perdure.model.limits import LEASE_MAX_SEC
from perdure.model.records import (
    HistoryEventType,
    Lease,
    WorkflowInstance,
)
from perdure.model.states import WorkflowStatus
from perdure.storage.contract import Storage
from perdure.storage.stores import Rooms, open_storage

DRAIN_SEC = 10.0
HEALTH_SEC = 5.0  # a database that does not answer by then is not reachable
SIGNALS = signal.SIGTERM, signal.SIGINT


class Client:
    """Starts runs and looks at them, without executing any: `async with Client(url):`.

    `database` is a URL, or a storage that is open already and stays so. With `outbox` the events that are sent here are
    also stored for the publisher of an App.
    """

    def __init__(self, database: str | Storage, *, outbox: bool = False) -> None:
        _check_database(database, type(self).__name__)
        self.url: str = Secret(database) if isinstance(database, str) else ""
        if type(self) is Client and ":memory:" in self.url:
            raise ConfigurationError(
                "a Client on sqlite:///:memory: would be alone with that database, as no worker can see it: use a file "
                "(sqlite:///name.db), or open an App"
            )
        self._given_storage = None if isinstance(database, str) else database
        self.told: Callable[[], None] | None = _nothing if outbox else None  # after an event went to the outbox
        self.home: ambient.Home  # where it was opened
        self._is_open = False
        self._opened: Storage
        self._opening: AsyncExitStack
        self._supervisor: Supervisor
        self._results: Results
        self._token: Token[Client | None] | None = None

    async def __aenter__(self) -> Self:
        if self._is_open:
            raise EngineError(f"this {type(self).__name__} is open already: open another one, or use this one")
        async with AsyncExitStack() as opening:
            self.home = ambient.Home()
            self._opened = await opening.enter_async_context(self._storage_to_open())
            await self._enter(opening)
            self._opening = opening.pop_all()
        self._is_open = True
        self._token = ambient.APP.set(self)
        ambient.opened(self)
        return self

    async def _enter(self, opening: AsyncExitStack) -> None:
        """Start what belongs to an open client; `opening` closes it again, also if a later part cannot be started."""
        if isinstance(self._opened, Rooms):
            await define(self._opened, {name: each.source_hash for name, each in WORKFLOWS.items()})
        self._supervisor = Supervisor()
        self._results = Results(self._opened, self._supervisor, alone=type(self) is Client)
        opening.push_async_callback(self._results.close)
        self._starts: Shared[WorkflowInstance, Lease | None] = Shared(self._opened.create_instances)
        self._starts.supervised = self._supervisor.watch("group commit of starts")

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_open = False
        ambient.closed(self)
        if self._token is not None:
            with suppress(ValueError):  # left in another context
                ambient.APP.reset(self._token)
        await self._opening.__aexit__(kind, error, trace)

    if not TYPE_CHECKING:  # a type checker reports `with` by itself

        def __enter__(self) -> NoReturn:
            raise TypeError(f"use `async with {type(self).__name__}(…)`, not `with`: opening a database has to wait")

        def __exit__(self, *_: object) -> None: ...

    def _storage_to_open(self) -> AbstractAsyncContextManager[Storage]:
        """The storage of the URL, or the one that was given, which its owner closes."""
        if self._given_storage is not None:
            return _borrowed(self._given_storage)
        return open_storage(self._storage_url())

    def dialect(self) -> str | None:
        """Return which database this is: sqlite, postgresql or mysql; None if the storage does not say."""
        return self._opened.dialect if isinstance(self._opened, Rooms) else None

    def _storage_url(self) -> str:
        return self.url

    def schema(self) -> str:
        """Return the schema that holds the tables, on PostgreSQL."""
        return self._opened.schema if isinstance(self._opened, Rooms) else ""

    @property
    def _storage(self) -> Storage:
        """The storage, for use by the loop and the process that opened it."""
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
        """Store a new run, or find the one that has its id; see `Workflow.start`."""
        return self, await starting.start(self._storage, request, self._create)

    async def _create(self, instance: WorkflowInstance) -> None:
        await self._starts(instance)

    # Looking.

    def get(self, instance_id: str) -> RunHandle[Any]:
        """Return a handle on a run by its id; nothing is read yet."""
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
        """Return a query for runs that match every filter given, newest first; with `stuck`, for stuck runs.

        `where` maps JSON paths of the input, such as "order.id", to values. It needs `workflow`, `status`,
        `started_after` or `stuck` beside it. Iterate over the query with `async for`, or see `RunQuery`.
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
        """Return whether the database answers and is migrated, how the background tasks are, and how late work is."""
        try:
            async with asyncio.timeout(HEALTH_SEC):
                pending = await self._storage.pending_migrations()
                oldest = await oldest_due(self._storage)
        except (StorageError, TimeoutError):
            return Health(False, self._supervisor.tasks())
        return Health(True, self._supervisor.tasks(), not pending, None if oldest is None else oldest.total_seconds())

    async def info(self, instance_id: str) -> RunInfo:
        """Return everything that is known of a run."""
        (run,) = await read_runs(self._storage, [await self._row(instance_id)], whole=True)
        return run

    async def steps(self, instance_id: str) -> list[StepInfo]:
        """Return the steps of a run, as far as its history tells."""
        await self._row(instance_id)
        return await read_steps(self._storage, instance_id)

    async def state(self, instance_id: str) -> Any:
        """Return what a run last passed to `set_state()`."""
        event = await self._storage.get_last_event(instance_id, STATE)
        if event is None:
            await self._row(instance_id)
            return None
        return decode(event.event_data or b"{}")["state"]

    async def history(self, instance_id: str) -> AsyncIterator[HistoryEntry]:
        """Iterate over the history of a run, in order."""
        await self._row(instance_id)
        async for entry in read_history(self._storage, instance_id):
            yield entry

    async def check_run(self, instance_id: str) -> None:
        """Raise `RunNotFoundError` if there is no such run."""
        await self._row(instance_id)

    async def _row(self, instance_id: str) -> WorkflowInstance:
        found = await self._storage.get_instance(instance_id)
        if found is None:
            raise starting.not_found(instance_id)
        return found

    async def finished(self, instance_id: str, timeout: timedelta | None) -> bytes:
        """Wait for the end of a run and return its result; raise what it ended with."""
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

        Returns when the request is recorded. Raises `WorkflowNotCancellableError` if the run has ended,
        `RunNotFoundError` if there is none, and `EngineError` if it belongs to another framework.
        """
        starting.refuse_foreign(await self._row(instance_id), "cancel")
        await self._storage.cancel_instance(instance_id, reason, compensate=True)

    async def retry(self, instance_id: str, *, from_step: str | None = None) -> RunHandle[Any]:
        """Try a failed or cancelled run again, as `<id>~r<n>`: from the start, or with the history before a step."""
        return RunHandle((self, await starting.retry(self._storage, instance_id, from_step)), plain)

    async def sweep(self, retention: Retention, *, dry_run: bool = False) -> Swept:
        """Remove at once what is older than a policy says, or with `dry_run` only tell how many that would be."""
        return await sweep(self._storage, retention, dry_run=dry_run)

    # Sending.

    async def send(self, outgoing: messages.Outgoing) -> None:
        """Store a message or an event."""
        if outgoing.event is None:
            await outgoing.store(self._storage)
        else:
            async with self._storage.transaction():
                await outgoing.store(self._storage)

    async def publish(self, channel: str, data: object, *, metadata: Mapping[str, object] | None = None) -> None:
        """Send a message to all runs that are subscribed to a channel."""
        await self.send(messages.message(channel, data, metadata))

    async def send_to(
        self, instance_id: str, channel: str, data: object, *, metadata: Mapping[str, object] | None = None
    ) -> None:
        """Send a message to one run, which keeps it until it takes it; a run that has ended drops it.

        Raises `RunNotFoundError` if there is no such run.
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
        """Store an event for the runs that wait for its type, or for one of them; see `perdure.send_event`."""
        outgoing = messages.event(type, data, to=to, source=source, id=id, subject=subject, told=self.told)
        await self.send(outgoing)


class App(Client):
    """A client that drives runs as well. `async with App(url):` migrates the database and starts the worker."""

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
        self.worker_id = worker_id or f"{socket.gethostname()[:60]}:{os.getpid()}:{secrets.token_hex(4)}"
        self._worker: Worker

    async def _enter(self, opening: AsyncExitStack) -> None:
        await super()._enter(opening)
        self._served = {each.name: each for each in self._given} if self._given is not None else WORKFLOWS
        relay = None
        if self._publisher is not None:
            relay = Relay(self._opened, self._publisher, self.worker_id)
            self.told = relay.wake
        held = self._transaction_sec if self.dialect() == "sqlite" else None  # there a transaction stops all writers
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
        """A worker that freezes in a transaction keeps its rows locked no longer than its leases last."""
        if self.url.startswith("sqlite") or "idle_transaction_timeout=" in self.url:
            return self.url
        return f"{self.url}{'&' if '?' in self.url else '?'}idle_transaction_timeout={self._lease_sec:g}"

    def _heartbeat(self, lost: Callable[[Lease], None]) -> Heartbeat:
        supervised = self._supervisor.watch("heartbeat")
        return Heartbeat(self._own_storage, self.worker_id, self._lease_sec, lost, supervised)

    def _own_storage(self) -> AbstractAsyncContextManager[Storage]:
        """A connection for the heartbeat; a database in memory has only the one."""
        if self._given_storage is not None or ":memory:" in self.url:
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
        """Take the run at once if there is room: no other worker has to find it."""
        slot = self._worker.reserve_slot() if instance.workflow_name in self._served else None
        if slot is None:
            await super()._create(instance)
        else:
            await self._leased((instance, slot))

    async def start(self, request: StartRequest) -> tuple["Client", str]:
        """Store a new run; one that begins later, or elsewhere, is looked for like any other."""
        started = await super().start(request)
        self._worker.wake()
        return started

    async def cancel(self, instance_id: str, reason: str = "") -> None:
        """Cancel a run, and look for it at once; see `Client.cancel`."""
        await super().cancel(instance_id, reason)
        self._worker.wake()

    async def send(self, outgoing: messages.Outgoing) -> None:
        """Store it, and see who waits for it."""
        await super().send(outgoing)
        self._worker.wake()

    async def serve(self) -> None:
        """Work until SIGTERM or SIGINT, then drain: what runs may finish, the rest is handed over.

        A second signal ends the draining at once. Raises `EngineError` if a background task keeps failing.
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
    if isinstance(database, Rooms) and not database.is_open:
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
    """Nobody here has to be woken."""
