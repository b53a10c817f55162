"""Interceptors: code of the program around starts, messages, executions of runs and attempts of activities.

They run on the host's side and never in a body, so they need not be deterministic and are not called on replay. An app
without interceptors has no `Interception`, and what it would wrap is called directly.
"""

import inspect
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Literal, Protocol, TypeVar

from perdure.engine.replay.context import ActivityInfo
from perdure.errors import EngineError
from perdure.model.headers import Headers, checked, none

T = TypeVar("T")
C = TypeVar("C", contravariant=True)

Around = AbstractContextManager[object]

StartKind = Literal["start", "child", "cron", "retry"]
Outcome = Literal["completed", "failed", "cancelled", "compensating", "recurred", "cancelling", "suspended", "released"]


@dataclass(slots=True)
class Start:
    """A run that is about to be stored.

    - `workflow`: the name of its workflow.
    - `kind`: `"start"` by a program or a step, `"child"`, `"cron"` or `"retry"`.
    - `run_id`: its id; None for a retry, whose id is chosen when it is stored. A child or tick whose id is taken gets a
      suffix.
    - `headers`: the headers that it inherits or that `options(headers=)` gives. An interceptor may change them until
      the run is stored.

    A run that an event starts is not among them: it has the headers of the event; see `Send`.
    """

    workflow: str
    kind: StartKind
    run_id: str | None
    headers: dict[str, str] = field(default_factory=dict)

    def stored_headers(self) -> Headers:
        """Return the headers to store; raise `TypeError` or `LimitError` if they are invalid."""
        return checked(self.headers, f"the start of {self.workflow}")


@dataclass(slots=True)
class Send:
    """A message or an event that is about to be stored.

    - `kind`: `"message"` or `"event"`.
    - `name`: the channel, or the type of the event.
    - `to`: the id of the only receiver; None for all that wait or are subscribed.
    - `headers`: the headers of the run that sends it. An interceptor may change them until the message is stored.
    """

    kind: Literal["message", "event"]
    name: str
    to: str | None
    headers: dict[str, str] = field(default_factory=dict)

    def stored_headers(self) -> Headers:
        """Return the headers to store; raise `TypeError` or `LimitError` if they are invalid."""
        return checked(self.headers, f"the {self.kind} {self.name!r}")


@dataclass(slots=True)
class Execution:
    """What a worker does for a run between taking it up and its end or next wait, including its replay.

    - `run_id`, `workflow`, `headers`: the run, its workflow and its headers.
    - `worker_id`, `fence`: the worker and its fencing token, which grows with each lease of the run.
    - `is_rollback`: whether the worker compensates the steps of the run.
    - `outcome`: how it ended, or None if it raised: `"completed"`, `"failed"`, `"cancelled"`, `"suspended"` (the run
      waits), `"recurred"`, `"compensating"` (a rollback follows), `"cancelling"` or `"released"` (this worker stops).
    - `error`: what failed the run, if it failed here.
    - `woken_by`: the headers of the message that resumed the run.

    The last three are set when the code around the execution continues.
    """

    run_id: str
    workflow: str
    headers: Headers
    worker_id: str
    fence: int
    is_rollback: bool
    outcome: Outcome | None = None
    error: BaseException | None = None
    woken_by: Headers = field(default_factory=none)


class Interceptor:
    """Code around the work of an `App` or `Client`. Derive from it and override the methods that you need.

    Each method returns a context manager, which is entered before the work and left after it; an exception of the work
    passes through it. It must not suppress exceptions. What it raises fails the work: the start raises it, the attempt
    of the activity fails, and the run is stuck and retried with back-off.
    """

    def start(self, start: Start) -> Around:
        """Return the code around storing a new run. It is called once for each start, also if the run exists."""
        return nullcontext()

    def send(self, send: Send) -> Around:
        """Return the code around storing a message or an event."""
        return nullcontext()

    def execute(self, execution: Execution) -> Around:
        """Return the code around the execution of a run by a worker, until the run ends or waits.

        Context variables that it sets are visible in the activities of this execution.
        """
        return nullcontext()

    def activity(self, attempt: ActivityInfo) -> Around:
        """Return the code around an attempt of an activity, compensation or failure handler.

        Context variables that it sets are visible in the activity. For an attempt that needs no code around it, return
        `nullcontext()`, which is not entered.
        """
        return nullcontext()


class _Maker(Protocol[C]):
    def __call__(self, about: C, /) -> Around: ...


class Checked:
    """Code around some work; it must not suppress exceptions."""

    __slots__ = ("_around",)

    def __init__(self, around: Around) -> None:
        self._around = around

    def __enter__(self) -> None:
        self._around.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._around.__exit__(kind, error, trace) and error is not None:
            raise EngineError(
                f"an interceptor suppressed {type(error).__name__}: {error}; interceptors must let exceptions pass: "
                "return None from __exit__, or raise the exception again"
            ) from error


def _around(makers: "Sequence[_Maker[Any]]", about: object) -> "Checked | nullcontext[None]":
    """Return the code of all interceptors around some work, the first outermost; a `nullcontext` if there is none."""
    around = makers[0](about) if len(makers) == 1 else _nested(makers, about)
    return around if type(around) is nullcontext else Checked(around)


@contextmanager
def _nested(makers: "Sequence[_Maker[Any]]", about: object) -> Iterator[None]:
    with ExitStack() as stack:
        for make in makers:
            stack.enter_context(make(about))
        yield


class Interception:
    """The interceptors of an app or client, by the work that they are around."""

    def __init__(self, interceptors: Sequence[Interceptor]) -> None:
        self._starts = _overridden(interceptors, "start")
        self._sends = _overridden(interceptors, "send")
        self._executions = _overridden(interceptors, "execute")
        self._activities = _overridden(interceptors, "activity")

    def start(self, about: Start) -> "Checked | nullcontext[None]":
        """Return the code around a start."""
        return _around(self._starts, about)

    def send(self, about: Send) -> "Checked | nullcontext[None]":
        """Return the code around sending a message."""
        return _around(self._sends, about)

    def activity(self, about: ActivityInfo) -> "Checked | nullcontext[None]":
        """Return the code around an attempt."""
        return _around(self._activities, about)

    @property
    def around_activities(self) -> bool:
        """Return whether there is code around attempts."""
        return bool(self._activities)

    async def execute(self, about: Execution, work: Callable[[], Awaitable[T]]) -> T:
        """Execute a run inside its interceptors; `work` sets the outcome."""
        with _around(self._executions, about):
            return await work()


def around_start(interception: Interception | None, about: Start) -> "Checked | nullcontext[None]":
    """Return the code around a start, which is nothing without interceptors."""
    return nullcontext() if interception is None else interception.start(about)


def around_send(interception: Interception | None, about: Send) -> "Checked | nullcontext[None]":
    """Return the code around sending a message, which is nothing without interceptors."""
    return nullcontext() if interception is None else interception.send(about)


def interception_of(interceptors: object) -> Interception | None:
    """Return the interception by a list of interceptors; None if it is empty. Raise `TypeError` for anything else."""
    if not isinstance(interceptors, Sequence) or isinstance(interceptors, str):
        raise TypeError(f"interceptors= must be a list of Interceptor objects, not {interceptors!r}")
    for each in interceptors:
        if not isinstance(each, Interceptor):
            raise TypeError(
                f"interceptors= takes objects whose class derives from perdure.interceptors.Interceptor, not {each!r}"
            )
        for name in ("start", "send", "execute", "activity"):
            if _is_no_context_manager(getattr(type(each), name)):
                raise TypeError(
                    f"{type(each).__name__}.{name}() must return a context manager: write `def` and decorate it with "
                    "@contextmanager"
                )
    return Interception(interceptors) if interceptors else None


def _is_no_context_manager(method: Callable[..., object]) -> bool:
    """Return whether a method returns a coroutine or generator, because it is async or lacks its decorator."""
    kinds = (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)
    return any(is_kind(method) for is_kind in kinds)


def _overridden(interceptors: Sequence[Interceptor], name: str) -> "list[_Maker[Any]]":
    base = getattr(Interceptor, name)
    return [getattr(each, name) for each in interceptors if getattr(type(each), name) is not base]
