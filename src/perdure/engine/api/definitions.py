"""Workflows and activities as the decorators define them. Defining one only registers it; nothing is executed."""

import asyncio
import hashlib
import inspect
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from functools import cached_property, update_wrapper
from typing import Any, Generic, ParamSpec, Protocol, TypeVar, cast, get_args, overload

from perdure.engine.api import ambient
from perdure.engine.api.handles import IfExists, RunHandle, StartRequest
from perdure.engine.history.codec import Signature
from perdure.engine.history.digests import Call
from perdure.engine.history.hints import signature
from perdure.engine.replay.source import check_source
from perdure.engine.starting import IN_BODY, starting
from perdure.errors import NotDurableError, OutsideWorkflowError
from perdure.integrations.starts import start_in, start_in_sync
from perdure.model import limits, names
from perdure.model.durations import Duration, moment, seconds
from perdure.model.retries import Retry
from perdure.model.schedules import Schedule

P = ParamSpec("P")
R = TypeVar("R")

Undo = Callable[..., Any]

UNDO_RETRY = Retry(attempts=10)


class Activity(Generic[P, R]):
    """A function whose result is recorded as a step of a run; made by `@activity`.

    A call returns a coroutine, also for a plain function. In a workflow the call is a step: it is executed, retried if
    it fails, and its result is recorded. Anywhere else the coroutine just runs the function.
    """

    def __init__(
        self,
        function: Callable[P, Any],
        name: str,
        retry: Retry,
        timeout: Duration | None,
        transactional: bool = False,
        origin: "Activity[P, R] | None" = None,
    ) -> None:
        if not isinstance(retry, Retry):
            raise TypeError(f"retry= of activity {name!r} must be a Retry, such as Retry(attempts=3), not {retry!r}")
        self.transactional = transactional
        self.function = function
        self.name: str = limits.name(name, "activity name", 150)
        self.retry = retry
        self.timeout = None if timeout is None else seconds(timeout, f"timeout= of activity {name!r}", positive=True)
        self.plain: bool = not inspect.iscoroutinefunction(function)
        self.signature = Signature.of(function)  # encodes the arguments and the result
        self._origin = origin  # the activity that `options()` was called on, which has the compensation
        self._undo: Activity[..., Any] | None = None
        update_wrapper(self, function)

    @property
    def undo(self) -> "Activity[..., Any] | None":
        """Return the compensation, or None."""
        return self._undo if self._origin is None else self._origin.undo

    @property
    def compensated_name(self) -> str:
        """Return the name under which the compensation is registered."""
        return self.name if self._origin is None else self._origin.compensated_name

    @overload
    def compensation(self, function: Undo, /) -> "Activity[..., Any]": ...

    @overload
    def compensation(
        self, function: None = None, /, *, retry: Retry = ..., timeout: Duration | None = None
    ) -> "Callable[[Undo], Activity[..., Any]]": ...

    def compensation(
        self, function: Undo | None = None, /, *, retry: Retry = UNDO_RETRY, timeout: Duration | None = None
    ) -> Any:
        """Register the compensation of this activity; use it as a decorator, with or without parentheses.

        The function takes any of the activity's parameters by name, and optionally `result`. When the run fails or is
        cancelled, the compensations of its completed steps run in reverse order, each at least once.

        - `retry`: the retry policy (default: 10 attempts).
        - `timeout`: maximum duration of one attempt, in seconds or as a timedelta (default: none).

        Returns the compensation. Raises `TypeError` if it is not a function, and `ValueError` if another activity with
        a compensation has the same name.
        """

        def define(function: Undo) -> "Activity[..., Any]":
            _check_function(function, "a compensation")
            _check_undo(function, self.function, f"the compensation of {self.name!r}", "result")
            self._undo = Activity(function, function.__name__, retry, timeout)
            _register("activities with a compensation", COMPENSATIONS, self.name, self)
            return self._undo

        return define if function is None else define(function)

    def options(
        self, *, retry: Retry | None = None, timeout: Duration | None = None, name: str | None = None
    ) -> "Activity[P, R]":
        """Return a copy of this activity with other settings: `await charge.options(timeout=60)(order_id)`.

        - `retry`: the retry policy.
        - `timeout`: maximum duration of one attempt, in seconds or as a timedelta.
        - `name`: the name in the step's id; not for an activity with a compensation.

        Each setting defaults to that of this activity.
        """
        return Activity(
            self.function,
            self.name if name is None else name,
            self.retry if retry is None else retry,
            self.timeout if timeout is None else timeout,
            self.transactional,
            self,
        )

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[object, None, R]:
        run = ambient.current_run()
        if run is None:
            return _named(self._run_here(args, kwargs), self.function)
        return _named(run.activity(self, args, kwargs), self.function)

    async def _run_here(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> R:
        result: Any = self.function(*args, **kwargs)
        return cast(R, result if self.plain else await result)

    def __repr__(self) -> str:
        return f"<activity {self.name}>"


@dataclass(frozen=True, slots=True)
class StartOptions:
    """The options for starting a run; see `Workflow.options`."""

    id: str | None = None
    at: datetime | None = None
    after: Duration | None = None
    timeout: Duration | None = None
    if_exists: IfExists = "return"
    in_transaction: object = None

    def __post_init__(self) -> None:
        names.run_id(self.id)
        if self.at is not None:
            moment(self.at, "options(at=)")
        if self.at is not None and self.after is not None:
            raise TypeError("options() takes at= or after=, not both")
        if self.if_exists not in get_args(IfExists):
            raise ValueError(f'options(if_exists=) must be "return" or "error", not {self.if_exists!r}')
        for name, positive in (("after", False), ("timeout", True)):
            given = getattr(self, name)
            if given is not None:
                span = timedelta(seconds=seconds(given, f"options({name}=)", positive=positive))
                object.__setattr__(self, name, span)

    def given(self) -> list[str]:
        """Return the names of the options that differ from their defaults."""
        return [each.name for each in fields(self) if getattr(self, each.name) != each.default]


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
        request = self._request(args, kwargs)
        decode = self._workflow.signature.decode_result
        run = ambient.current_run()
        if self._options.in_transaction is not None:
            if run is not None:
                raise NotDurableError("in_transaction= is for use outside a workflow: start the run in an activity")
            return await start_in(self._options.in_transaction, request, decode)
        if run is not None:
            call = self._workflow.call(args, kwargs, request.input_data, self._options.id)
            return RunHandle((IN_BODY, await run.effect("start", starting(request), call, str)), decode)
        return RunHandle(await ambient.current_app().start(request), decode)

    def start_sync(self, *args: P.args, **kwargs: P.kwargs) -> RunHandle[R]:
        """Start a run in the transaction of a blocking connection and return a handle on the run.

        `order.options(in_transaction=connection).start_sync("A-1")` writes the run on that connection. The run starts
        if and when the transaction commits. Raises `TypeError` without `in_transaction=` or with an async connection.
        """
        name = self._workflow.name
        if self._options.in_transaction is None:
            raise TypeError(
                f"{name}.start_sync() needs a blocking connection with an open transaction: "
                f"{name}.options(in_transaction=connection).start_sync(…); in a coroutine use `await {name}.start(…)`"
            )
        if ambient.current_run() is not None:
            raise NotDurableError("start_sync() is for use outside a workflow: start the run in an activity")
        request = self._request(args, kwargs)
        return start_in_sync(self._options.in_transaction, request, self._workflow.signature.decode_result)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[object, None, R]:
        """Start a run and wait for its result; in a workflow, the new run is a child of the calling run.

        Raises what `start()` and `RunHandle.result()` raise. Raises `OutsideWorkflowError` in an activity, or if no App
        or Client is open.
        """
        run = ambient.current_run()
        if run is None:
            self._workflow.signature.bind(args, kwargs)  # so that wrong arguments raise at the call, not at the await
            return _named(self._start_and_wait(*args, **kwargs), self._workflow.function)
        if given := self._options.given():
            raise TypeError(
                f"a child takes no options, and {self._workflow.name} was given {', '.join(given)}: use "
                f"`await {self._workflow.name}.options(…).start(…)` for a run of its own, and asyncio.timeout() or "
                "sleep() for times"
            )
        data = self._workflow.signature.bind_checked(args, kwargs)
        child = run.child(self._workflow, data, self._workflow.call(args, kwargs, data))
        return _named(child, self._workflow.function)

    async def _start_and_wait(self, *args: P.args, **kwargs: P.kwargs) -> R:
        name = self._workflow.name
        if self._options.in_transaction is not None:
            raise TypeError(f"in_transaction= is for {name}.options(…).start(…): nothing runs before your commit")
        if ambient.ATTEMPT.get() is not None:
            where = "in an activity"
        elif not ambient.is_open():
            where = "where no App or Client is open"
        else:
            return await (await self.start(*args, **kwargs)).result()
        raise OutsideWorkflowError(
            f"workflow {name!r} was called {where}, so nothing would make it durable: use `await {name}.start(…)` "
            f"inside `async with App(url):`, or `await {name}.function(…)` to run the plain function"
        )

    def _request(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> StartRequest:
        workflow, options = self._workflow, self._options
        try:
            data = workflow.signature.bind_checked(args, kwargs)
        except TypeError as error:
            known = signature(workflow.function).parameters
            for name in [each.name for each in fields(StartOptions) if each.name in kwargs and each.name not in known]:
                raise TypeError(f"{error}: for the option use {workflow.name}.options({name}=…).start(…)") from None
            raise
        limits.size(data, f"the input of {workflow.name}")
        return StartRequest(
            workflow.name,
            data,
            options.id,
            options.at,
            cast("timedelta | None", options.after),
            options.if_exists,
            workflow.source_hash,
            workflow.source,
            cast("timedelta | None", options.timeout),
            workflow.signature.unbind,
        )


class ConfiguredWorkflow(Startable[P, R]):
    """A workflow with options for starting it; made by `Workflow.options`. It can be started and called."""

    def __init__(self, workflow: "Workflow[P, R]", options: StartOptions) -> None:
        self._workflow = workflow
        self._options = options

    def __repr__(self) -> str:
        given = ", ".join(f"{name}={getattr(self._options, name)!r}" for name in self._options.given())
        return f"<workflow {self._workflow.name} with {given or 'no options'}>"


class Workflow(Startable[P, R]):
    """A durable async function; made by `@workflow`.

    `start()` starts a run and returns a handle on it. A call starts a run and waits for its result: in a workflow as a
    child of the calling run, elsewhere with an open App or Client. `function` is the undecorated function.
    """

    _options = StartOptions()

    def __init__(
        self, function: Callable[P, Coroutine[Any, Any, R]], name: str, max_tries: int | None, schedule: Schedule | None
    ) -> None:
        self._workflow = self
        self.function = function
        self.name: str = limits.name(name, "workflow name")
        self.max_tries = max_tries
        self.schedule = schedule
        self.signature = Signature.of(function)  # encodes the arguments and the result
        self.undo: Activity[..., Any] | None = None
        self.failure_handler: Activity[..., Any] | None = None
        update_wrapper(self, function)

    @cached_property
    def source(self) -> str:
        """Return the source code of the function, or an empty string if it is not available."""
        try:
            return inspect.getsource(self.function)
        except (OSError, TypeError):
            return ""

    @cached_property
    def source_hash(self) -> str:
        """Return a hash of the source code, which identifies a version of the workflow."""
        return hashlib.sha256(self.source.encode()).hexdigest()

    def options(
        self,
        *,
        id: str | None = None,
        at: datetime | None = None,
        after: Duration | None = None,
        timeout: Duration | None = None,
        if_exists: IfExists = "return",
        in_transaction: object = None,
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

        Raises `TypeError` or `ValueError` for an invalid option.
        """
        return ConfiguredWorkflow(self, StartOptions(id, at, after, timeout, if_exists, in_transaction))

    def compensation(self, function: Undo, /) -> Activity[..., Any]:
        """Register the compensation of this workflow as a child; use it as a decorator.

        The function takes any of the workflow's parameters by name, and optionally `result`. It runs when a parent of a
        completed child fails or is cancelled later.
        """
        _check_function(function, "a compensation")
        _check_undo(function, self.function, f"the compensation of {self.name!r}", "result")
        self.undo = Activity(function, function.__name__, UNDO_RETRY, None)
        _register("workflows with a compensation", UNDOABLE_WORKFLOWS, self.name, self)
        return self.undo

    def on_failure(self, function: Undo, /) -> Activity[..., Any]:
        """Register the function to call after a run failed or was cancelled; use it as a decorator.

        It is called at least once, after the compensations. It takes any of the workflow's parameters by name, and
        optionally `error`, the error message or the reason of the cancellation as text.
        """
        _check_function(function, "a failure handler")
        _check_undo(function, self.function, f"the failure handler of {self.name!r}", "error", "result")
        self.failure_handler = Activity(function, function.__name__, UNDO_RETRY, None)
        return self.failure_handler

    def call(self, args: Sequence[object], kwargs: Mapping[str, object], data: bytes, *about: object) -> Call:
        """Return the call to compare with the history on replay, where another call has the same step id."""
        return Call(*about, *self.signature.values(args, kwargs), encoded=data, what=self.name)

    def __repr__(self) -> str:
        return f"<workflow {self.name}>"


def _named(coroutine: Coroutine[Any, Any, R], function: Callable[..., Any]) -> Coroutine[object, None, R]:
    """Give the coroutine the name of the user's function, for "coroutine 'charge' was never awaited"."""
    named: Any = coroutine
    named.__name__, named.__qualname__ = function.__name__, function.__qualname__
    return coroutine  # without Any in its type, which would make mypy lose the types of gather()


def _mark_coroutine(callable: Any) -> None:
    """Mark a callable so that frameworks await its result although it is not an `async def`."""
    if sys.version_info >= (3, 12):
        inspect.markcoroutinefunction(callable)
    else:
        callable._is_coroutine = asyncio.coroutines._is_coroutine  # type: ignore[attr-defined]


Startable.start.__qualname__ = "Workflow.start"  # as people know it: "coroutine 'Workflow.start' was never awaited"
_mark_coroutine(Startable)
_mark_coroutine(Startable.__call__)
_mark_coroutine(Activity)
_mark_coroutine(Activity.__call__)

WORKFLOWS: dict[str, Workflow[..., Any]] = {}  # all that are defined; an App may execute fewer
ACTIVITIES: dict[str, Activity[..., Any]] = {}
COMPENSATIONS: dict[str, Activity[..., Any]] = {}  # the activities that have a compensation, by name
UNDOABLE_WORKFLOWS: dict[str, Workflow[..., Any]] = {}


def _register(kind: str, known: dict[str, Any], name: str, defined: Any) -> None:
    other = known.get(name)
    if other is not None and _home(other.function) != _home(defined.function):
        raise ValueError(
            f"two {kind} are named {name!r}, in {_home(other.function)} and {_home(defined.function)}: "
            "give one of them another name="
        )
    known[name] = defined


def _home(function: Callable[..., Any]) -> str:
    return f"{function.__module__}.{function.__qualname__}"


def _check_function(function: object, what: str, *, asynchronous: bool = False) -> None:
    """Raise `TypeError` unless this is a function that can be a workflow, activity or compensation."""
    kind = "an `async def` function" if asynchronous else "a function"
    if isinstance(function, Activity | Workflow):
        raise TypeError(f"{function!r} is already decorated: a function is a workflow or an activity, not both")
    if isinstance(function, staticmethod | classmethod):
        raise TypeError(f"{what} must be {kind} of a module, not a {type(function).__name__}: move it out of the class")
    if isinstance(function, str):
        raise TypeError(f"{what} must be {kind}, not {function!r}: to give it a name, use name={function!r}")
    if not inspect.isfunction(function):
        raise TypeError(f"{what} must be {kind}, not {function!r}: use a function of a module")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise TypeError(
            f"{what} must return its result, and {function.__qualname__} is a generator (it has a `yield`): return a "
            "list instead"
        )
    if asynchronous and not inspect.iscoroutinefunction(function):
        raise TypeError(
            f"{what} must be an `async def`, and {function.__qualname__} is a plain function: write "
            f"`async def {function.__name__}`, or use @activity"
        )


def _name(given: object, function: Callable[..., Any], what: str) -> str:
    if given is not None and not isinstance(given, str):
        raise TypeError(f"name= of {what} must be a text, not {given!r}")
    if given is None and function.__name__ == "<lambda>":
        raise TypeError(f"{what} needs a name, and a lambda has none: use def, or name=")
    return function.__name__ if given is None else given


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
) -> Any:
    """Make an `async def` function a workflow; use it as a decorator, with or without parentheses.

    - `name`: the name that is stored with each run (default: the function's name).
    - `max_tries`: fail a run after this many tries in a row without progress (default: retry forever with back-off).
    - `strict`: raise `NotDurableError` for calls in the body that are not deterministic (default: False, they raise a
      `NotDurableWarning`).
    - `cron`: start a run on this schedule, such as `"0 9 * * mon-fri"` (default: none). All parameters need defaults.
    - `zone`: the time zone of the schedule, such as `"Europe/Berlin"` (default: UTC).

    Returns the `Workflow`. Raises `TypeError` or `ValueError` for a function or option that cannot work, and for a name
    that another workflow has.
    """
    if max_tries is not None and (not isinstance(max_tries, int) or isinstance(max_tries, bool) or max_tries < 1):
        raise ValueError(f"workflow(max_tries=) must be a whole number of at least 1, not {max_tries!r}")

    if cron is None and zone != "UTC":
        raise TypeError(
            f"workflow(zone={zone!r}) is the time zone of a schedule, and there is none: give cron= as well"
        )

    def define(function: Callable[P, Coroutine[Any, Any, R]]) -> Workflow[P, R]:
        _check_function(function, "a workflow", asynchronous=True)
        schedule = None if cron is None else Schedule(cron, zone)
        if cron is not None:
            _check_scheduled(function)
        made = Workflow(function, _name(name, function, "a workflow"), max_tries, schedule)
        check_source(function, strict=strict)
        _register("workflows", WORKFLOWS, made.name, made)
        return made

    return define if function is None else define(function)


@overload
def activity(function: Callable[P, Coroutine[Any, Any, R]], /) -> Activity[P, R]: ...


@overload
def activity(function: Callable[P, R], /) -> Activity[P, R]: ...


@overload
def activity(
    *, name: str | None = None, retry: Retry = ..., timeout: Duration | None = None, transactional: bool = False
) -> "Decorator": ...


def activity(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    retry: Retry = Retry(),  # noqa: B008 - frozen
    timeout: Duration | None = None,
    transactional: bool = False,
) -> Any:
    """Make a function an activity; use it as a decorator, with or without parentheses.

    An activity is executed at least once; its result is recorded exactly once. A plain function runs in a thread.

    - `name`: the name in the ids of its steps (default: the function's name).
    - `retry`: the retry policy (default: `Retry()`, three attempts).
    - `timeout`: maximum duration of one attempt, in seconds or as a timedelta (default: none).
    - `transactional`: commit the SQL on `connection()`, sent messages and the result in one transaction, so that the
      activity takes effect exactly once (default: False).

    Returns the `Activity`. Raises `TypeError` or `ValueError` for a function or option that cannot work, and for a name
    that another activity has.
    """
    if not isinstance(transactional, bool):
        raise TypeError(f"activity(transactional=) must be True or False, not {transactional!r}")

    def define(function: Callable[..., Any]) -> Activity[..., Any]:
        _check_function(function, "an activity")
        made: Activity[..., Any] = Activity(
            function, _name(name, function, "an activity"), retry, timeout, transactional
        )
        if "<locals>" not in function.__qualname__:  # a nested function is defined again at each call of the outer one
            _register("activities", ACTIVITIES, made.name, made)
        return made

    return define if function is None else define(function)


def _check_scheduled(function: Callable[..., Any]) -> None:
    """Raise `TypeError` if a scheduled workflow has a required parameter: a tick starts it without arguments."""
    free = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    for name, parameter in signature(function).parameters.items():
        if parameter.default is inspect.Parameter.empty and parameter.kind not in free:
            raise TypeError(
                f"{function.__qualname__} is scheduled (cron=), so it is started without arguments: give its parameter "
                f"{name!r} a default"
            )


def _check_undo(function: Callable[..., Any], undone: Callable[..., Any], what: str, *more: str) -> None:
    """Refuse a function that could not be called: it is given the arguments of the one that it belongs to, by name."""
    known = [*signature(undone).parameters, *more]
    free = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    for name, parameter in signature(function).parameters.items():
        if name not in known and parameter.default is inspect.Parameter.empty and parameter.kind not in free:
            raise TypeError(
                f"{what}, {function.__qualname__}(), has a parameter {name!r} that it is not given: it can take "
                f"{', '.join(known)}"
            )


class Decorator(Protocol):
    """The type of `@activity(...)`, which accepts async and plain functions."""

    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> Activity[P, R]: ...

    @overload
    def __call__(self, function: Callable[P, R], /) -> Activity[P, R]: ...
