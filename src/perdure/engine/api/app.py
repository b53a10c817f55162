"""Apps: clients that execute runs as well, with a worker in the same process."""

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import timedelta
from types import TracebackType
from typing import Any

from perdure.brokers.incoming import ToChannel, ToEvent
from perdure.brokers.publishing import Publisher
from perdure.brokers.subscription import Subscription
from perdure.codecs.pipeline import Codecs
from perdure.database.cancellation import finish
from perdure.database.secret import Secret
from perdure.engine.api import messages
from perdure.engine.api.client import Client
from perdure.engine.api.database import blocks_writers
from perdure.engine.api.publishers import checked_publisher
from perdure.engine.api.serving import serve_until_signal
from perdure.engine.api.worker_ids import new_worker_id
from perdure.engine.api.workflow import Workflow
from perdure.engine.execution.clock import steady
from perdure.engine.interception import Interceptor
from perdure.engine.replay.definitions import WORKFLOWS, WorkflowDefinition
from perdure.engine.replay.guard import TaskFactory
from perdure.engine.worker.hooks import Hooks
from perdure.engine.worker.metering import MeteredHooks
from perdure.engine.worker.relay import OutboxRelay, PublishFunction
from perdure.engine.worker.retention import Retention
from perdure.engine.worker.settings import WorkerSettings
from perdure.engine.worker.subscriber import Subscriber
from perdure.engine.worker.worker import Worker
from perdure.hooks import Hook
from perdure.metrics import Meter
from perdure.model import limits
from perdure.model.durations import Duration, seconds
from perdure.model.headers import checked
from perdure.storage.contract import Storage

DRAIN_SEC = 10.0


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
    - `publisher`: where events of the outbox go: the URL of a broker or webhook such as `"nats://host"`, an async
      function that is called with each `OutboxEvent`, or a `Publisher` (default: none, events have no outbox).
    - `subscriptions`: where events and messages come from; a list of `Subscription` (default: none).
    - `codec`: how values are stored, such as `Encrypted(keys)`: a codec of `perdure.codecs`, or a list of them
      (default: as JSON). Use the same one in all processes.
    - `hooks`: functions that are called with the events of `perdure.hooks` (default: none).
    - `interceptors`: code around starts, messages, executions of runs and activities; see `perdure.interceptors`
      (default: none).
    - `metrics`: what receives the metrics of `perdure.metrics`, such as `perdure.integrations.prometheus.Prometheus()`
      (default: none, nothing is measured).
    - `worker_id`: the name of this worker in the database and the log; unique among all workers (default: host name,
      process id and a random part).

    Durations are seconds or timedeltas. Raises `TypeError` or `ValueError` for an invalid setting.
    """

    has_worker = True

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
        publisher: str | PublishFunction | Publisher | None = None,
        subscriptions: Sequence[Subscription] = (),
        codec: Codecs | None = None,
        hooks: Sequence[Hook] = (),
        interceptors: Sequence[Interceptor] = (),
        metrics: Meter | None = None,
        worker_id: str | None = None,
    ) -> None:
        publisher = Secret(publisher) if isinstance(publisher, str) else publisher
        super().__init__(database, outbox=publisher is not None, codec=codec, interceptors=interceptors)
        del database  # a traceback shows arguments, and a URL may have a password
        _check_counts(1, max_runs=max_runs, max_activities=max_activities, max_threads=max_threads)
        _check_counts(0, max_cached_runs=max_cached_runs)
        _check_workflows(workflows)
        lease_sec = _lease_seconds(lease, "App(lease=)")
        self._drain_sec = seconds(drain_timeout, "App(drain_timeout=)")
        transaction_sec = _lease_seconds(transaction_timeout, "App(transaction_timeout=)")
        _check_retention(retention)
        _check_meter(metrics)
        self._publisher = None if publisher is None else checked_publisher(publisher, "App")
        _check_subscriptions(subscriptions)
        self._subscriptions = tuple(subscriptions)
        self._subscribers: list[Subscriber] = []
        self.worker_id: str = new_worker_id() if worker_id is None else limits.name(worker_id, "App(worker_id=)")
        self._served = _by_name(workflows)
        self._settings = WorkerSettings(
            worker_id=self.worker_id,
            workflows=self._served,
            lease_sec=lease_sec,
            max_runs=max_runs,
            max_cached_runs=max_cached_runs,
            max_activities=max_activities,
            max_threads=max_threads,
            transaction_sec=transaction_sec,
            retention=retention,
            clock=self._clock,
            interception=self.interception,
            meter=metrics,
        )
        self._database.idle_sec = lease_sec  # so that a frozen worker's row locks end with its leases
        self._hooks = Hooks(hooks) if metrics is None else MeteredHooks(hooks, metrics)
        self._worker: Worker

    async def _enter(self, opening: AsyncExitStack) -> None:
        await super()._enter(opening)
        settings, relay = self._settings, None
        if self._publisher is not None:
            relay = OutboxRelay(self._opened, self._publisher, self.worker_id, self._clock)
            self.outbox_stored = relay.wake
        if not blocks_writers(self._opened):
            settings = replace(settings, transaction_sec=None)
        self._worker = Worker(
            self._opened,
            settings,
            lambda: self._database.open_another(self._opened),
            supervisor=self._supervisor,
            results=self._results,
            hooks=self._hooks,
            relay=relay,
        )
        opening.push_async_callback(self._worker.starts.ended)
        self._create = self._worker.starts.create
        await self._start_worker(self._worker)
        self._unguard = TaskFactory.install()
        self._subscribers = [
            Subscriber(each, self._receive, self._opened.now, number)
            for number, each in enumerate(self._subscriptions, 1)
        ]
        for subscriber in self._subscribers:
            subscriber.start(self._supervisor)

    async def _receive(self, found: ToEvent | ToChannel) -> None:
        """Store what a broker has delivered. It is not put into the outbox, which would send it round and round."""
        source, headers = found.source or "", checked(found.headers, "the message of a broker")
        if isinstance(found, ToEvent):
            outgoing = messages.event(
                found.type,
                found.data,
                to=found.to,
                source=source,
                id=found.id,
                subject=found.subject,
                headers=headers,
            )
        else:
            outgoing = messages.message(
                found.channel, found.data, found.metadata, to=found.to, id=found.id, source=source, headers=headers
            )
        await self.send(outgoing)

    async def _start_worker(self, worker: Worker) -> None:
        """Start the worker; a test observes it from here on."""
        await worker.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await finish(self._drain(), hurry=self._worker.hurried.set)
        finally:
            await super().__aexit__(kind, error, trace)

    async def _drain(self) -> None:
        until = steady() + self._drain_sec
        hurried = self._worker.hurried
        await asyncio.gather(*(each.stop(self._drain_sec, hurried) for each in self._subscribers))
        await self._worker.stop(max(0.0, until - steady()))
        await self._hooks.close(0.0 if self._worker.hurried.is_set() else until - steady())
        self._unguard()

    def _wake(self) -> None:
        self._worker.wake()

    def _started(self) -> None:
        self._worker.hint()

    def _sent(self, channel: str) -> None:
        self._worker.sent(channel)

    async def serve(self) -> None:
        """Open the app and execute runs until SIGTERM or SIGINT, then drain and close it.

        While the app drains, running activities may finish within `drain_timeout`; all other work is released for
        other workers at once. A second signal ends the draining immediately. Raises `EngineError` if a background task
        keeps failing.
        """
        await serve_until_signal(self, lambda: self._supervisor.failure(), self._hurry)

    def _hurry(self) -> None:
        if (worker := getattr(self, "_worker", None)) is not None:
            worker.hurried.set()


def hurry(client: Client) -> None:
    """Let an App drain without waiting, now or when it closes; a Client has nothing to wait for."""
    if isinstance(client, App):
        client._hurry()


def _by_name(workflows: Sequence[Workflow[..., Any]] | None) -> dict[str, WorkflowDefinition]:
    """Return the given workflows; by default all that are defined, also those that are defined later."""
    return WORKFLOWS if workflows is None else {each.name: each for each in workflows}


def _lease_seconds(given: Duration, what: str) -> float:
    return seconds(given, what, positive=True, longest=timedelta(seconds=limits.LEASE_MAX_SEC))


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


def _check_retention(retention: object) -> None:
    if retention is not None and not isinstance(retention, Retention):
        raise TypeError(f"App(retention=) must be a Retention, such as Retention(finished=…), not {retention!r}")


def _check_subscriptions(subscriptions: object) -> None:
    if not isinstance(subscriptions, Sequence) or isinstance(subscriptions, str):
        raise TypeError(f"App(subscriptions=) must be a list of subscriptions, not {type(subscriptions).__name__}")
    for each in subscriptions:
        if not isinstance(each, Subscription):
            raise TypeError(
                f"App(subscriptions=) must be a list of subscriptions, and {type(each).__name__} is none: write "
                "Subscription(url)"
            )
    if len({id(each) for each in subscriptions}) < len(subscriptions):
        raise TypeError("App(subscriptions=) has the same subscription twice: create two, or remove one")


def _check_meter(meter: object) -> None:
    if meter is not None and not callable(getattr(meter, "bind", None)):
        raise TypeError(
            f"App(metrics=) must have the methods of perdure.metrics.Meter, such as "
            f"perdure.integrations.prometheus.Prometheus(), not {meter!r}"
        )
