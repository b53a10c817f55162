"""Workflows: the `@workflow` decorator, and what it makes. Defining one only registers it; nothing is executed."""

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import fields
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, cast, overload

from perdure.engine.api import current, current_sync
from perdure.engine.api.activity import Activity, Undo
from perdure.engine.api.coroutines import mark_coroutine, named
from perdure.engine.api.handles import IN_BODY, RunHandle
from perdure.engine.api.in_transaction import start_in, start_in_sync
from perdure.engine.api.options import StartOptions, with_inherited
from perdure.engine.api.sync_handles import IN_OPEN_SYNC_CLIENT, SyncRunHandle
from perdure.engine.execution.children import call_child
from perdure.engine.history.hints import required_parameters, signature
from perdure.engine.replay import context
from perdure.engine.replay.definitions import (
    UNDO_RETRY,
    UNDOABLE_WORKFLOWS,
    WORKFLOWS,
    WorkflowDefinition,
    check_function,
    check_undo,
    name_of,
    register,
)
from perdure.engine.replay.source import check_source
from perdure.engine.starting import IfExists, StartRequest, starting
from perdure.errors import NotDurableError, OutsideWorkflowError
from perdure.model import limits, names
from perdure.model.durations import Duration
from perdure.model.schedules import Schedule

if TYPE_CHECKING:
    from perdure.engine.api.sync_client import SyncClient

P = ParamSpec("P")
R = TypeVar("R")


_WITHOUT_CLIENT = (
    "With a blocking connection of your own use {name}.options(in_transaction=connection).start_sync(…), and in a "
    "coroutine `await {name}.start(…)`"
)


class Startable(Generic[P, R]):
    """A workflow with or without options, which can be started and called."""

    _workflow: "Workflow[P, R]"
    _options: StartOptions

    async def start(self, *args: P.args, **kwargs: P.kwargs) -> RunHandle[R]:
        """Start a run with these arguments and return a handle on it. The run is stored when this returns.

        In a workflow the start is a step; the new run is independent of the run that starts it. Raises `TypeError` if
        the arguments don't match the function's parameters and type hints, `RunExistsError` if a different run has the
        id, and `EngineError` if no App or Client is open.
        """
        return await self._start(self._encoded(args, kwargs), args, kwargs)

    async def _start(self, data: bytes, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> RunHandle[R]:
        request = self._request(data)
        decode = self._workflow.signature.decode_result
        run = context.current_run()
        if self._options.in_transaction is not None:
            if run is not None:
                raise NotDurableError("in_transaction= is for use outside a workflow: start the run in an activity")
            return RunHandle(await start_in(self._options.in_transaction, request), decode)
        if run is not None:
            call = self._workflow.call(args, kwargs, data, self._options.id)
            effect = starting(request, current.interception())
            return RunHandle((IN_BODY, await run.effect("start", effect, call, str)), decode)
        return RunHandle(await current.current_app().start(request), decode)

    def start_sync(self, *args: P.args, **kwargs: P.kwargs) -> SyncRunHandle[R]:
        """Start a run with these arguments and return a handle on it, in a program that blocks.

        It uses the `SyncClient` of the enclosing `with`, otherwise the only one that is open; the run is stored when
        this returns. `order.options(in_transaction=connection).start_sync("A-1")` needs none: it writes the run on that
        blocking connection, and the run starts if and when the transaction commits. Raises `TypeError` if the arguments
        don't match the function's parameters and type hints, or for an async connection; `RunExistsError` if a
        different run has the id; and `EngineError` if no SyncClient is open, or several are.
        """
        return start_with(None, self, args, kwargs)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[object, None, R]:
        """Start a run and wait for its result; in a workflow, the new run is a child of the calling run.

        Raises what `start()` and `RunHandle.result()` raise. Raises `OutsideWorkflowError` in an activity, or if no App
        or Client is open.
        """
        run = context.current_run()
        if run is None:
            # Here and not in the coroutine, so that wrong arguments raise at the call, not at the await.
            data = self._workflow.signature.bind_checked(args, kwargs)
            return named(self._start_and_wait(data, args, kwargs), self._workflow.function)
        if given := self._options.given():
            raise TypeError(
                f"a child takes no options, and {self._workflow.name} was given {', '.join(given)}: use "
                f"`await {self._workflow.name}.options(…).start(…)` for a run of its own, and asyncio.timeout() or "
                "sleep() for times"
            )
        data = self._workflow.signature.bind_checked(args, kwargs)
        child = call_child(run, self._workflow, data, self._workflow.call(args, kwargs, data), current.interception())
        return named(child, self._workflow.function)

    async def _start_and_wait(self, data: bytes, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> R:
        name = self._workflow.name
        if self._options.in_transaction is not None:
            raise TypeError(f"in_transaction= is for {name}.options(…).start(…): nothing runs before your commit")
        if context.ATTEMPT.get() is not None:
            where = "in an activity"
        elif not current.is_open():
            where = "where no App or Client is open"
        else:
            return await (await self._start(data, args, kwargs)).result()
        raise OutsideWorkflowError(
            f"workflow {name!r} was called {where}, so nothing would make it durable: use `await {name}.start(…)` "
            f"inside `async with App(url):`, or `await {name}.function(…)` to run the plain function"
        )

    def _encoded(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bytes:
        """Return the arguments of a start as JSON; raise `TypeError` if they don't match the function's parameters."""
        workflow = self._workflow
        try:
            return workflow.signature.bind_checked(args, kwargs)
        except TypeError as error:
            known = signature(workflow.function).parameters
            for name in [each.name for each in fields(StartOptions) if each.name in kwargs and each.name not in known]:
                raise TypeError(f"{error}: for the option use {workflow.name}.options({name}=…).start(…)") from None
            raise

    def _request(self, data: bytes) -> StartRequest:
        workflow, options = self._workflow, self._options
        limits.size(data, f"the input of {workflow.name}")
        return StartRequest(
            workflow.name,
            data,
            options.id,
            options.at,
            cast("timedelta | None", options.after),
            options.if_exists,
            workflow.source_hash,
            cast("timedelta | None", options.timeout),
            workflow.signature.unbind,
            with_inherited(options.headers),
        )


class ConfiguredWorkflow(Startable[P, R]):
    """A workflow with options for starting it; made by `Workflow.options`. It can be started and called."""

    def __init__(self, workflow: "Workflow[P, R]", options: StartOptions) -> None:
        self._workflow = workflow
        self._options = options

    def __repr__(self) -> str:
        given = ", ".join(f"{name}={getattr(self._options, name)!r}" for name in self._options.given())
        return f"<workflow {self._workflow.name} with {given or 'no options'}>"


class Workflow(WorkflowDefinition, Startable[P, R]):
    """A durable async function; made by `@workflow`.

    `start()` starts a run and returns a handle on it. A call starts a run and waits for its result: in a workflow as a
    child of the calling run, elsewhere with an open App or Client. `function` is the undecorated function.
    """

    function: Callable[P, Coroutine[Any, Any, R]]
    _options = StartOptions()

    def __init__(
        self,
        function: Callable[P, Coroutine[Any, Any, R]],
        name: str,
        max_tries: int | None,
        schedule: Schedule | None,
        event: str | None,
    ) -> None:
        WorkflowDefinition.__init__(self, function, name, max_tries, schedule, event)
        self._workflow = self

    def options(
        self,
        *,
        id: str | None = None,
        at: datetime | None = None,
        after: Duration | None = None,
        timeout: Duration | None = None,
        if_exists: IfExists = "return",
        in_transaction: object = None,
        headers: Mapping[str, str] | None = None,
    ) -> ConfiguredWorkflow[P, R]:
        """Return this workflow with options for starting it: `await order.options(id="order-1").start("A-1")`.

        - `id`: the run's id (default: a new unique id; these sort by time).
        - `at`: a datetime with a time zone, when the run starts (default: now).
        - `after`: the delay before the run starts, in seconds or as a timedelta; instead of `at`.
        - `timeout`: cancel the run if it has not ended after this time, in seconds or as a timedelta (default: none).
        - `if_exists`: what happens if a run has the id already. With `"return"` (the default) the start returns a
          handle on the existing run, ended or not, if it has the same workflow and input, and raises `RunExistsError`
          otherwise. With `"error"` it always raises `RunExistsError`.
        - `in_transaction`: a connection of your own with an open transaction. The run is written on it, and starts if
          and when the transaction commits. Use `start_sync()` with a blocking connection.
        - `headers`: texts that travel with the run, its children and its messages, such as a tenant; see
          `run_headers()`. At most 32 (default: those of the run that starts this one, to which these are added).

        Raises `TypeError` or `ValueError` for an invalid option.
        """
        return ConfiguredWorkflow(self, StartOptions(id, at, after, timeout, if_exists, in_transaction, headers))

    def compensation(self, function: Undo, /) -> Activity[..., Any]:
        """Register the compensation of this workflow as a child; use it as a decorator.

        The function takes any of the workflow's parameters by name, and optionally `result`. It runs when a parent of a
        completed child fails or is cancelled later.
        """
        check_function(function, "a compensation")
        check_undo(function, self.function, f"the compensation of {self.name!r}", "result")
        undo: Activity[..., Any] = Activity(function, function.__name__, UNDO_RETRY, None)
        self.undo = undo
        register("workflows with a compensation", UNDOABLE_WORKFLOWS, self.name, self)
        return undo

    def on_failure(self, function: Undo, /) -> Activity[..., Any]:
        """Register the function to call after a run failed or was cancelled; use it as a decorator.

        It is called at least once, after the compensations. It takes any of the workflow's parameters by name, and
        optionally `error`, the error message or the reason of the cancellation as text.
        """
        check_function(function, "a failure handler")
        check_undo(function, self.function, f"the failure handler of {self.name!r}", "error", "result")
        handler: Activity[..., Any] = Activity(function, function.__name__, UNDO_RETRY, None)
        self.failure_handler = handler
        return handler


def start_with(
    client: "SyncClient | None", startable: Startable[..., R], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> SyncRunHandle[R]:
    """Start a run through a client, by default that of the calling thread, or on a connection of the caller."""
    options, definition = startable._options, startable._workflow
    if context.current_run() is not None:
        raise NotDurableError("start_sync() is for use outside a workflow: start the run in an activity")
    decode, name = definition.signature.decode_result, definition.name
    if options.in_transaction is None:
        client = client or current_sync.current_client(f"{name}.start_sync()", _WITHOUT_CLIENT.format(name=name))
        started = client.start_request(startable._request(startable._encoded(args, kwargs)))
        return SyncRunHandle(client, started, decode)
    client = client or current_sync.entered()
    if client is None and not current.is_open():
        client = current_sync.only_one()
    request = startable._request(startable._encoded(args, kwargs))
    return SyncRunHandle(client or IN_OPEN_SYNC_CLIENT, start_in_sync(options.in_transaction, request, client), decode)


Startable.start.__qualname__ = "Workflow.start"  # as people know it: "coroutine 'Workflow.start' was never awaited"
mark_coroutine(Startable)
mark_coroutine(Startable.__call__)


@overload
def workflow(function: Callable[P, Coroutine[Any, Any, R]], /) -> Workflow[P, R]: ...


@overload
def workflow(
    *,
    name: str | None = None,
    max_tries: int | None = None,
    strict: bool = False,
    cron: str | None = None,
    zone: str = "UTC",
    on_event: str | None = None,
) -> Callable[[Callable[P, Coroutine[Any, Any, R]]], Workflow[P, R]]: ...


def workflow(
    function: Callable[P, Coroutine[Any, Any, R]] | None = None,
    /,
    *,
    name: str | None = None,
    max_tries: int | None = None,
    strict: bool = False,
    cron: str | None = None,
    zone: str = "UTC",
    on_event: str | None = None,
) -> Any:
    """Make an `async def` function a workflow; use it as a decorator, with or without parentheses.

    - `name`: the name that is stored with each run (default: the function's name).
    - `max_tries`: fail a run after this many tries in a row without progress (default: retry forever with back-off).
    - `strict`: raise `NotDurableError` for calls in the body that are not deterministic (default: False, they raise a
      `NotDurableWarning`).
    - `cron`: start a run on this schedule, such as `"0 9 * * mon-fri"` (default: none). All parameters need defaults.
    - `zone`: the time zone of the schedule, such as `"Europe/Berlin"` (default: UTC).
    - `on_event`: start a run for each event of this type, in the commit that stores the event (default: none). The
      function takes the event's data, or the whole `Event` if its parameter is hinted so. Duplicates of an event, which
      have its source and id, start nothing; nor does an event that is sent `to` one run.

    Returns the `Workflow`. Raises `TypeError` or `ValueError` for a function or option that cannot work, and for a name
    that another workflow has.
    """
    if max_tries is not None and (not isinstance(max_tries, int) or isinstance(max_tries, bool) or max_tries < 1):
        raise ValueError(f"workflow(max_tries=) must be a whole number of at least 1, not {max_tries!r}")

    if cron is None and zone != "UTC":
        raise TypeError(
            f"workflow(zone={zone!r}) is the time zone of a schedule, and there is none: pass cron= as well"
        )

    if cron is not None and on_event is not None:
        raise TypeError(
            f"workflow(cron=…, on_event={on_event!r}) cannot work: a tick has no event; use two workflows, one of "
            "which calls the other"
        )

    def define(function: Callable[P, Coroutine[Any, Any, R]]) -> Workflow[P, R]:
        check_function(function, "a workflow", asynchronous=True)
        schedule = None if cron is None else Schedule(cron, zone)
        if cron is not None:
            _check_scheduled(function)
        if on_event is not None:
            _check_started_by_events(function, on_event)
        made = Workflow(function, name_of(name, function, "a workflow"), max_tries, schedule, on_event)
        check_source(function, strict=strict)
        register("workflows", WORKFLOWS, made.name, made)
        return made

    return define if function is None else define(function)


def _check_scheduled(function: Callable[..., Any]) -> None:
    """Raise `TypeError` if a scheduled workflow has a required parameter: a tick starts it without arguments."""
    for name in required_parameters(function):
        raise TypeError(
            f"{function.__qualname__} is scheduled (cron=), so it is started without arguments: give its parameter "
            f"{name!r} a default"
        )


def _check_started_by_events(function: Callable[..., Any], on_event: object) -> None:
    """Raise `TypeError` unless a workflow has exactly one parameter without a default, which takes the event."""
    if not isinstance(on_event, str):
        raise TypeError(f"workflow(on_event=) must be an event type, which is a text, not {on_event!r}")
    names.stored(on_event, "event type")
    needed = required_parameters(function)
    if len(needed) != 1:
        found = "none" if not needed else ", ".join(map(repr, needed))
        raise TypeError(
            f"{function.__qualname__} is started by events (on_event=), which pass it one argument, so it needs "
            f"exactly one parameter without a default, and it has {found}"
        )
