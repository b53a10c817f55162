"""Definitions: what a user decorates. They are plain data and callables; nothing runs because of them."""

import asyncio
import hashlib
import inspect
import random
import sys
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property, update_wrapper
from typing import Any, Generic, ParamSpec, Protocol, TypeVar, overload

from perdure.engine import ambient
from perdure.engine.codec import Signature
from perdure.engine.cron import Schedule
from perdure.engine.digests import Call
from perdure.engine.handles import BlockingConnection, Handle, IfExists, Started, StartRequest
from perdure.engine.hints import signature
from perdure.engine.source import check_source
from perdure.engine.starting import IN_BODY, starting
from perdure.errors import LimitError, NotDurableError, SerializationError, TerminalError
from perdure.integrations.starts import start_in
from perdure.model import limits

P = ParamSpec("P")
R = TypeVar("R")

Undo = Callable[..., Any]

RESERVED = frozenset({"id", "at", "after", "timeout", "in_transaction", "if_exists"})


@dataclass(frozen=True, slots=True)
class Retry:
    """How often an activity is tried, and how long is waited in between: `first`, then `factor` times as long."""

    attempts: int = 3
    first: timedelta = timedelta(seconds=0.2)
    factor: float = 2.0
    longest: timedelta = timedelta(minutes=5)
    jitter: float = 0.2
    never: tuple[type[Exception], ...] = ()

    def __post_init__(self) -> None:
        if self.attempts < 1 or self.factor < 1 or not 0 <= self.jitter <= 1:
            raise ValueError("Retry needs attempts >= 1, factor >= 1 and a jitter between 0 and 1")

    def pause(self, attempt: int, error: BaseException) -> float | None:
        """Seconds to wait after this attempt failed; None to give up."""
        final = isinstance(error, (TerminalError, SerializationError, *self.never)) or not isinstance(error, Exception)
        if final or attempt >= self.attempts:
            return None
        longest = min(self.longest, limits.SPAN_MAX).total_seconds()
        try:
            pause = min(self.first.total_seconds() * self.factor ** (attempt - 1), longest)
        except OverflowError:
            pause = longest
        return pause * random.uniform(1 - self.jitter, 1)  # nosec B311 # a pause


UNDO_RETRY = Retry(attempts=10)


class Activity(Generic[P, R]):
    """A function whose result is recorded once. Called in a workflow it is a step; elsewhere it is an ordinary call."""

    def __init__(
        self,
        function: Callable[P, Any],
        name: str,
        retry: Retry,
        timeout: timedelta | None,
        transactional: bool = False,
    ) -> None:
        self.transactional = transactional
        self.function = function
        self.name = limits.name(name, "activity name", 150)
        self.retry = retry
        self.timeout = timeout
        self.plain = not inspect.iscoroutinefunction(function)
        self.undo: Activity[..., Any] | None = None
        update_wrapper(self, function)

    @cached_property
    def signature(self) -> Signature:
        """How arguments and result are written."""
        return Signature.of(self.function)

    @overload
    def compensation(self, function: Undo, /) -> "Activity[..., Any]": ...

    @overload
    def compensation(
        self, function: None = None, /, *, retry: Retry = ..., timeout: timedelta | None = None
    ) -> "Callable[[Undo], Activity[..., Any]]": ...

    def compensation(
        self, function: Undo | None = None, /, *, retry: Retry = UNDO_RETRY, timeout: timedelta | None = None
    ) -> Any:
        """Say how to undo this activity, with those of its arguments that the function names, and its `result`.

        When the workflow fails or is cancelled, what was done is undone in reverse order.
        """

        def define(function: Undo) -> "Activity[..., Any]":
            self.undo = Activity(function, function.__name__, retry, timeout)
            _register(COMPENSATIONS, self.name, self)
            return self.undo

        return define if function is None else define(function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Awaitable[R]:
        run = ambient.current_run()
        if run is None:
            return self.function(*args, **kwargs)  # type: ignore[no-any-return]
        return run.activity(self, args, kwargs)

    def __repr__(self) -> str:
        return f"<activity {self.name}>"


class Workflow(Generic[P, R]):
    """An async function that survives crashes. `start` runs it durably; called in another workflow it is a child."""

    def __init__(
        self, function: Callable[P, Coroutine[Any, Any, R]], name: str, max_tries: int | None, schedule: Schedule | None
    ) -> None:
        if not inspect.iscoroutinefunction(function):
            raise TypeError(f"a workflow is an `async def`, and {function!r} is not")
        self.function = function
        self.name = limits.name(name, "workflow name")
        self.max_tries = max_tries
        self.schedule = schedule
        self.undo: Activity[..., Any] | None = None
        self.failure_handler: Activity[..., Any] | None = None
        update_wrapper(self, function)

    @cached_property
    def signature(self) -> Signature:
        """How arguments and result are written."""
        return Signature.of(self.function)

    @cached_property
    def source(self) -> str:
        """The text of the function, where it can be had."""
        try:
            return inspect.getsource(self.function)
        except (OSError, TypeError):
            return ""

    @cached_property
    def source_hash(self) -> str:
        """Tells versions of the code apart."""
        return hashlib.sha256(self.source.encode()).hexdigest()

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
        run = ambient.current_run()
        if run is not None:
            data = self.signature.bind(args, kwargs)
            return run.child(self, data, self._call(args, kwargs, data))
        return self.function(*args, **kwargs)

    def compensation(self, function: Undo, /) -> Activity[..., Any]:
        """Say how to undo a child that has completed, for when its parent fails later; it gets its `result`."""
        self.undo = Activity(function, function.__name__, UNDO_RETRY, None)
        _register(UNDOABLE_WORKFLOWS, self.name, self)
        return self.undo

    def on_failure(self, function: Undo, /) -> Activity[..., Any]:
        """Call this once the run has failed or was cancelled and everything is undone; it gets `error`, a text."""
        self.failure_handler = Activity(function, function.__name__, UNDO_RETRY, None)
        return self.failure_handler

    @overload
    def start(
        self,
        *args: object,
        id: str | None = None,
        at: datetime | None = None,
        after: timedelta | None = None,
        timeout: timedelta | None = None,
        in_transaction: BlockingConnection,
        if_exists: IfExists = "same",
        **kwargs: object,
    ) -> Started[R]: ...

    @overload
    def start(
        self,
        *args: object,
        id: str | None = None,
        at: datetime | None = None,
        after: timedelta | None = None,
        timeout: timedelta | None = None,
        in_transaction: object = None,
        if_exists: IfExists = "same",
        **kwargs: object,
    ) -> Coroutine[Any, Any, Handle[R]]: ...

    def start(
        self,
        *args: object,
        id: str | None = None,
        at: datetime | None = None,
        after: timedelta | None = None,
        timeout: timedelta | None = None,
        in_transaction: object = None,
        if_exists: IfExists = "same",
        **kwargs: object,
    ) -> Coroutine[Any, Any, Handle[R]]:
        """Start a run with these arguments; durable when it returns.

        The same id again with the same input gives a handle on the run that is there, finished or not; with another
        input, or with `if_exists="error"`, it is an `InstanceExistsError`. `at` or `after` put the beginning off. With
        `timeout` the run is cancelled when it takes longer than that, from now.

        With `in_transaction`, a connection of yours that has a transaction open, the start is part of that
        transaction: the run begins if and when you commit. A blocking connection is written to at the call, and the
        start need not be awaited.
        """
        if timeout is not None and timeout > limits.SPAN_MAX:
            raise LimitError(f"timeout= of {self.name}.start() is at most a hundred years, not {timeout}")
        data = self.signature.bind(args, kwargs)
        code = self.source_hash, self.source
        request = StartRequest(self.name, data, id, at, after, if_exists, *code, timeout, self.signature.unbind)
        if in_transaction is None:
            run = ambient.current_run()
            return self._start(request, None if run is None else self._call(args, kwargs, data, id))
        if ambient.current_run() is not None:
            raise NotDurableError("in_transaction= is for use outside a workflow: start the run in an activity")
        return start_in(in_transaction, request, self.signature.decode_result)

    def _call(self, args: Sequence[object], kwargs: Mapping[str, object], data: bytes, *about: object) -> Call:
        """What tells this start of a run from another one at the same place of a body."""
        return Call(*about, *self.signature.values(args, kwargs), encoded=data, what=self.name)

    async def _start(self, request: StartRequest, call: Call | None) -> Handle[R]:
        run = ambient.current_run()
        if run is not None and call is not None:
            started = await run.effect("start", starting(request), call, str)
            return Handle((IN_BODY, started), self.signature.decode_result)
        return Handle(await ambient.current_app().start(request), self.signature.decode_result)

    def __repr__(self) -> str:
        return f"<workflow {self.name}>"


def _mark_coroutine(function: Any) -> None:
    """Have frameworks await what a function gives, though it is no `async def`."""
    if sys.version_info >= (3, 12):
        inspect.markcoroutinefunction(function)
    else:
        function._is_coroutine = asyncio.coroutines._is_coroutine  # type: ignore[attr-defined]


_mark_coroutine(Workflow.start)

WORKFLOWS: dict[str, Workflow[..., Any]] = {}  # every one that was defined; an App may serve fewer
COMPENSATIONS: dict[str, Activity[..., Any]] = {}  # the activities that can be undone, by name
UNDOABLE_WORKFLOWS: dict[str, Workflow[..., Any]] = {}  # and the children


def _register(known: dict[str, Any], name: str, defined: Any) -> None:
    other = known.get(name)
    if other is not None and _home(other.function) != _home(defined.function):
        raise ValueError(
            f"two of them are called {name!r}, in {_home(other.function)} and {_home(defined.function)}: "
            "give one of them another name="
        )
    known[name] = defined


def _home(function: Callable[..., Any]) -> str:
    return f"{function.__module__}.{function.__qualname__}"


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
    """Make an `async def` a workflow, called `name` or like the function; with `cron`, one that starts by the clock.

    Calls in it that no replay could repeat are warned of, or refused with `strict`. A run that ends this many tries in
    a row without progress fails; by default it waits for ever for code that fits.
    """

    def define(function: Callable[P, Coroutine[Any, Any, R]]) -> Workflow[P, R]:
        schedule = None if cron is None else Schedule(cron, zone)
        if cron is not None:
            _check_scheduled(function)
        made = Workflow(function, name or function.__name__, max_tries, schedule)
        taken = RESERVED.intersection(signature(function).parameters)
        if taken:
            raise TypeError(
                f"start() needs {', '.join(sorted(taken))} for itself: rename that parameter of {made.name}"
            )
        check_source(function, strict=strict)
        _register(WORKFLOWS, made.name, made)
        return made

    return define if function is None else define(function)


@overload
def activity(function: Callable[P, Coroutine[Any, Any, R]], /) -> Activity[P, R]: ...


@overload
def activity(function: Callable[P, R], /) -> Activity[P, R]: ...


@overload
def activity(
    *, name: str | None = None, retry: Retry = ..., timeout: timedelta | None = None, transactional: bool = False
) -> "Decorator": ...


def activity(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    retry: Retry = Retry(),  # noqa: B008 - frozen
    timeout: timedelta | None = None,
    transactional: bool = False,
) -> Any:
    """Make a function an activity: its result is recorded once, its failures are retried.

    `timeout` is for each attempt. A plain function runs in a thread. With `transactional` its SQL on `connection()`,
    what it sends and its result are one transaction: it takes effect exactly once.
    """

    def define(function: Callable[..., Any]) -> Activity[..., Any]:
        return Activity(function, name or function.__name__, retry, timeout, transactional)

    return define if function is None else define(function)


def _check_scheduled(function: Callable[..., Any]) -> None:
    """Refuse a workflow that the clock could not start: nobody gives it arguments."""
    free = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    for name, parameter in signature(function).parameters.items():
        if parameter.default is inspect.Parameter.empty and parameter.kind not in free:
            raise TypeError(
                f"{function.__qualname__} starts by the clock (cron=), which gives it no arguments: give its parameter "
                f"{name!r} a default"
            )


class Decorator(Protocol):
    """`@activity(...)`: takes async and plain functions alike."""

    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> Activity[P, R]: ...

    @overload
    def __call__(self, function: Callable[P, R], /) -> Activity[P, R]: ...
