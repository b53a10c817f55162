"""The loop a workflow's body runs on: it has no clock, no threads and no sockets, so every run of it is the same.

The host calls `pump` after it gave the body something (a step's result, a timer that fired); the body then runs until
it is still. Nothing else moves it. What the body does therefore depends only on its code and on the order of what it
was given, and that order is the run's history.

Three things of Python would still let chance in, and are taken out here:
 - sets of tasks and futures are ordered by hash, which is an address: ours have a hash by number (`BodyTask`);
 - `as_completed` makes its tasks in the order of a set of coroutines: see `_AsCompleted`;
 - the cycle collector may run anybody's clean-up anywhere: it is off while the body runs.
"""

import asyncio
import gc
import math
import sys
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Sequence, Set, ValuesView
from contextvars import Context, copy_context
from functools import partial
from itertools import count
from pathlib import Path
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar, TypeVarTuple, Unpack
from weakref import WeakKeyDictionary
from zlib import crc32

from perdure.engine.guard import came_by_signal
from perdure.engine.scopes import Scope, current_scope, enter
from perdure.errors import NotDurableError

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

BUDGET = 250_000
"""How many callbacks a body may run between two rows: many times what tens of thousands of branches need."""

NEVER_SEC = 100 * 365.25 * 86400.0
"""A timer this far away never fires and is not kept: the databases' calendars end before `sleep(inf)` does."""

_WAYS = {
    "run_in_executor set_default_executor shutdown_default_executor": "make it a plain function with @activity, which "
    "runs in a thread",
    "call_soon_threadsafe": "send the run an event or a message instead",
    "add_signal_handler remove_signal_handler": "cancel the run or send it an event from outside",
    "run_forever run_until_complete stop": "the engine runs the body; await it instead",
    "set_task_factory get_task_factory": "the engine makes the body's tasks",
    "set_exception_handler get_exception_handler": "the engine reports what nobody awaited; use @workflow.on_failure",
}
_ANY_WAY = "move it into an activity"


def _refusal(name: str) -> Callable[..., None]:
    way = next((way for names, way in _WAYS.items() if name in names.split()), _ANY_WAY)

    def refuse(*_: object, **__: object) -> None:
        raise NotDurableError(f"loop.{name}() in a workflow's body could not be replayed: {way}")

    return refuse


if TYPE_CHECKING:
    # The refusals are put in by name, which a type checker can't see; this class has all the methods.
    _Refusing = asyncio.SelectorEventLoop
else:
    _PUBLIC = [name for name in vars(asyncio.AbstractEventLoop) if not name.startswith("_")]
    _Refusing = type("_Refusing", (asyncio.AbstractEventLoop,), {name: _refusal(name) for name in _PUBLIC})


class Timer(asyncio.TimerHandle):
    """A timer of the body: `path` names it, `delay` is in seconds from the loop's time when it was made.

    One that was due at once, or never is, has no wait (`waiting` is False from the start) and is not known to `Timers`.
    """

    __slots__ = ("delay", "path", "waiting")

    def __init__(self, delay: float, when: float, *handle: Any) -> None:
        super().__init__(when, *handle)
        self.delay = delay
        self.path = ""
        self.waiting = False

    # The base compares by time and callback, so that two `sleep(5)` would be one key of a dict.
    __eq__ = object.__eq__  # pyright: ignore[reportAssignmentType]
    __hash__ = object.__hash__


class Timers(Protocol):
    """Who keeps the body's timers and gives them back to `BodyLoop.fire`."""

    def start(self, timer: Timer) -> None:
        """The body waits for this timer; what this raises reaches the body."""

    def drop(self, timer: Timer) -> None:
        """The body cancelled this timer before it fired."""


class BodyTask(asyncio.Task[T]):
    """A task whose place in a set depends on its number, not on its address.

    `TaskGroup` cancels, `asyncio.wait` answers and bodies iterate in the order of sets.
    """

    __slots__ = ("_code_context", "_hash")
    _log_destroy_pending: bool

    def __init__(self, coro: Coroutine[Any, Any, T], *, number: int, context: Context, **options: Any) -> None:
        self._hash = number  # first: the base puts the task into a set
        self._code_context = context
        super().__init__(coro, context=context, **options)

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        return f"<task {self.get_name()!r} of a workflow>"  # asyncio's errors show it

    def close(self) -> bool:
        """End the coroutine where it stands, in the context that it runs in; False if it goes on all the same."""
        loop, coro = self.get_loop(), self.get_coro()
        asyncio.tasks._enter_task(loop, self)
        try:
            self._code_context.run(coro.close)
        except RuntimeError as error:
            return "ignored GeneratorExit" not in str(error)
        except BaseException as error:
            if came_by_signal(error):
                raise
        finally:
            asyncio.tasks._leave_task(loop, self)
        return True


class BodyFuture(asyncio.Future[T]):
    """A future with a hash by number too, taken when it is first asked for: the host's futures must not count."""

    __slots__ = ("_hash",)
    _hash: int

    def __hash__(self) -> int:
        try:
            return self._hash
        except AttributeError:
            loop = self.get_loop()
            assert isinstance(loop, BodyLoop)
            self._hash = next(loop._future_numbers)
            return self._hash


class BodyLoop(_Refusing):
    """A deterministic event loop, pumped from outside, in the host loop's thread.

    `report` gets what `call_exception_handler` gets, from wherever Python found it. `seed` tells runs apart in hashes
    and must be the same on every replay of a run: asyncio keeps the tasks of all loops in one set, which would be slow
    if the first tasks of ten thousand runs were alike.
    """

    def __init__(self, timers: Timers, report: Callable[[dict[str, Any]], None], *, seed: str = "") -> None:
        self.timers = timers
        self._report = report
        self._ready: deque[asyncio.Handle] = deque()
        self._time = 0.0
        self._root = Scope()
        self._places: WeakKeyDictionary[object, str] = WeakKeyDictionary()
        self._tasks: dict[BodyTask[Any], None] = {}  # kept alive: a forgotten task must not end by collection
        self._ordered: dict[int, asyncio.Task[Any]] = {}
        high = (crc32(seed.encode()) & 0x3FFFFFFF) << 32  # low bits by number, so that small sets are in order
        self._task_numbers = count(high + 1)
        self._future_numbers = count(high + 1)
        self._pumping = self._closed = self._debug = False

    # Driving it, from the host

    def spawn(self, coroutine: Coroutine[Any, Any, T], *, name: str | None = None) -> asyncio.Task[T]:
        """Make the root task, in a copy of the caller's context; it runs at the next `pump`."""
        return self._task(coroutine, self._root, name or "body", copy_context(), {})

    def pump(self, budget: int = BUDGET) -> None:
        """Run the body until it is still; `NotDurableError` if it is not after so many callbacks.

        It may be called from a task of the host as well as from a callback: running loop, current task, hooks and
        collector are the host's again afterwards, whatever is raised. SystemExit and KeyboardInterrupt are raised only
        if they came by a signal: those of the body's own are an outcome of its tasks like any other error.
        """
        assert not self._pumping, "the body is running: pump was called from inside it"
        self._check_open()
        host, hooks, collecting = asyncio._get_running_loop(), sys.get_asyncgen_hooks(), gc.isenabled()
        task = asyncio.current_task() if host is not None else None
        self._pumping = True
        try:
            gc.disable()
            if host is not None and task is not None:  # since 3.14 a thread has one current task, not one per loop
                asyncio.tasks._leave_task(host, task)
            sys.set_asyncgen_hooks(firstiter=None, finalizer=self._abandoned)
            asyncio._set_running_loop(self)
            self._run_ready(budget)
        finally:
            asyncio._set_running_loop(host)
            if host is not None and task is not None:
                asyncio.tasks._enter_task(host, task)
            sys.set_asyncgen_hooks(*hooks)
            if collecting:
                gc.enable()
            self._pumping = False

    def _run_ready(self, budget: int) -> None:
        ready = self._ready
        while ready:
            budget -= 1
            if budget < 0:
                raise NotDurableError(
                    f"the body spins at {_place(ready[0])}: it went on for {BUDGET:,} turns of its loop without "
                    "waiting for a step, a message or a timer; await one of these, or an asyncio.Event; do not poll"
                )
            handle = ready.popleft()
            if not handle._cancelled:
                try:
                    handle._run()
                except (SystemExit, KeyboardInterrupt) as error:
                    if came_by_signal(error):
                        raise
                    if not isinstance(_owner(handle), asyncio.Task):  # a task has it as its outcome
                        self._report({"message": f"a callback of the body raised {error!r}", "exception": error})

    def fire(self, timer: Timer) -> None:
        """The timer is due: its time is the loop's time, unless that is later, and its callback is ready."""
        if timer.waiting:
            timer.waiting = False
            self._time = max(self._time, timer.when())
            self._ready.append(timer)

    def advance(self, time: float) -> None:
        """So much time has passed, as the history says; it does not go back."""
        self._time = max(self._time, time)

    def tasks(self) -> Set[asyncio.Task[Any]]:
        """The unfinished tasks, in the order they were made in."""
        return {task: None for task in self._tasks if not task.done()}.keys()

    def abandon(self, tries: int) -> bool:
        """End the tasks that do not heed their cancellation; False if there is one that cannot be ended.

        Such a one catches whatever is thrown into it. It is never collected: Python would run it once more then, in
        whatever context, and complain.
        """
        stubborn: list[object] = []

        def end_all() -> None:
            for task in self.tasks():
                assert isinstance(task, BodyTask)
                if not any(task.close() for _ in range(tries)):
                    stubborn.append(task.get_coro())

        self._ready = deque([asyncio.Handle(end_all, (), self)])
        self.pump(1)
        for each in stubborn:
            _keep_for_good(each)
        return not stubborn

    def close(self) -> None:
        """Refuse further use; cancels nothing, and what was left unfinished is not reported."""
        assert not self._pumping, "the body is running: close was called from inside it"
        self._closed = True
        self._ready.clear()
        for task in self._tasks:
            task._log_destroy_pending = False

    # What asyncio asks of a loop

    def call_soon(
        self, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        """Run a callback after those that are ready, in the caller's scope unless `context` has another."""
        self._check_open()
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def call_later(
        self, delay: float, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> Timer:
        """A durable timer; with a delay of nothing or less it is no timer but ready at once, like `call_soon`."""
        return self._timer(Timer(max(delay, 0.0), self._time + delay, callback, args, self, context))

    def call_at(
        self, when: float, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> Timer:
        """A durable timer for a time of this loop; one that is not in the future is ready at once."""
        return self._timer(Timer(max(when - self._time, 0.0), when, callback, args, self, context))

    def _timer(self, timer: Timer) -> Timer:
        self._check_open()
        if math.isnan(timer.when()):
            raise ValueError("a timer's time must be a number")
        if timer.delay <= 0:
            self._ready.append(timer)
            return timer
        timer.path = self._scope().next()
        if timer.delay <= NEVER_SEC:
            self.timers.start(timer)
            timer.waiting = True
        return timer

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Called by `Timer.cancel`; that of a closed loop is only Python tidying up."""
        if isinstance(handle, Timer) and handle.waiting and not self._closed:
            handle.waiting = False
            self.timers.drop(handle)

    def create_task(
        self,
        coro: Generator[Any, None, T] | Coroutine[Any, Any, T],
        *,
        name: object = None,
        context: Context | None = None,
        **options: Any,
    ) -> asyncio.Task[T]:
        """A task with a scope of its own; a `context` is copied, as two tasks may be given the same one."""
        self._check_open()
        if (origin := _AsCompleted.calling(sys._getframe(1))) is not None:
            return self._as_ordered(origin, coro)
        path = self._places.pop(coro, None) or self._scope().next()
        context = copy_context() if context is None else context.copy()
        # asyncio would count all tasks of the process for the name
        return self._task(coro, Scope(path), f"Task-{path}" if name is None else name, context, options)

    def placed(self, coro: Coroutine[Any, Any, T], path: str) -> Coroutine[Any, Any, T]:
        """Have the task that is made of a coroutine, if one is, take this path and none of its own."""
        self._places[coro] = path
        return coro

    def _task(self, coro: Any, scope: Scope, name: object, context: Context, options: Any) -> asyncio.Task[Any]:
        enter(context, scope)
        number = next(self._task_numbers)
        task: BodyTask[Any] = BodyTask(coro, number=number, loop=self, name=name, context=context, **options)
        if not task.done():  # an eager one may be
            self._tasks[task] = None
            task.add_done_callback(self._finished, context=context)
        return task

    def _finished(self, task: Any) -> None:
        del self._tasks[task]

    def _as_ordered(self, origin: "_AsCompleted", coro: Any) -> asyncio.Task[Any]:
        """The task for one of `as_completed`'s awaitables; at the first of them all are made, in the list's order."""
        key = id(origin.current)
        if key not in self._ordered:
            self._ordered = {id(one): asyncio.ensure_future(one, loop=self) for one in origin.awaitables()}
        if coro is not origin.current:
            coro.close()  # made by asyncio around an awaitable that has its task already
        return self._ordered.pop(key)

    def create_future(self) -> asyncio.Future[Any]:
        """A future of this loop."""
        return BodyFuture(loop=self)

    def time(self) -> float:
        """Seconds from 0.0 when the body began; it moves when a timer fires, or with a row that has its time."""
        return self._time

    def is_running(self) -> bool:
        """True while the body runs."""
        return self._pumping

    def is_closed(self) -> bool:
        """True after `close`."""
        return self._closed

    def get_debug(self) -> bool:
        """Whether asyncio keeps tracebacks of where things were made."""
        return self._debug

    def set_debug(self, enabled: bool) -> None:
        """Have asyncio keep tracebacks of where things were made."""
        self._debug = enabled

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Report what no code of the body can get."""
        self._report(context)

    default_exception_handler = call_exception_handler

    async def shutdown_asyncgens(self) -> None:
        """Nothing to do: a generator is closed when the body lets go of it."""

    def _check_open(self) -> None:
        if self._closed:
            raise RuntimeError("Event loop is closed")

    def _scope(self) -> Scope:
        return current_scope() or self._root

    def _abandoned(self, generator: AsyncGenerator[Any, Any]) -> None:
        """Close an async generator the body let go of; one that the collector found, at a time of its own, is left."""
        if asyncio._get_running_loop() is self:
            self.create_task(generator.aclose())
        elif not self._closed:
            message = "an async generator was left in a reference cycle and not closed: use contextlib.aclosing"
            self._report({"message": message, "asyncgen": generator})


class _AsCompleted(NamedTuple):
    """A call of `asyncio.as_completed` that is making its tasks.

    It does so for each of `set(awaitables)`, and a set of coroutines has the order of their addresses; the paths of
    the tasks would be dealt out by chance. The list it was given has the order that is meant.
    """

    given: object
    current: object

    @classmethod
    def calling(cls, frame: FrameType | None) -> "_AsCompleted | None":
        """The call on whose behalf asyncio asks for a task, looking up from `frame` while that is asyncio's code."""
        inner = frame
        while frame is not None and frame.f_globals is vars(asyncio.tasks):
            if names := _AS_COMPLETED.get(frame.f_code):
                given, current = names
                # 3.11 runs the comprehension in a frame of its own; before it begins, what makes tasks is `given`
                inside = {**frame.f_locals, **(inner.f_locals if inner is not None else {})}
                return cls(inside[given], inside[current]) if current in inside else None
            inner, frame = frame, frame.f_back
        return None

    def awaitables(self) -> list[Any]:
        """Those that are no futures yet, each once, in the order they were given in."""
        if not isinstance(self.given, Sequence | ValuesView):
            raise NotDurableError("as_completed() in a workflow's body needs an order to replay: give it a list")
        return list({id(one): one for one in self.given if not asyncio.isfuture(one)}.values())


def _owner(handle: asyncio.Handle) -> object:
    """The task whose step or wake-up a handle is, or whatever else the callback is a method of."""
    return getattr(getattr(handle, "_callback", None), "__self__", None)


def _place(handle: asyncio.Handle) -> str:
    """Where in the user's code a callback goes on: the file, the line and the function."""
    owner = _owner(handle)
    if isinstance(owner, asyncio.Task):
        found = _innermost(owner.get_coro())
        if found is not None:
            return found
    callback = getattr(handle, "_callback", None)
    while isinstance(callback, partial):
        callback = callback.func
    code = getattr(callback, "__code__", None)
    return repr(callback) if code is None else f"{code.co_filename}:{code.co_firstlineno} in {code.co_qualname}"


def _innermost(coro: Any) -> str | None:
    """The last of the frames that a suspended coroutine waits in, which is not asyncio's or this package's."""
    found = None
    while coro is not None:
        frame = getattr(coro, "cr_frame", None) or getattr(coro, "gi_frame", None)
        if frame is not None and not frame.f_code.co_filename.startswith(_LIBRARIES):
            found = f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_qualname}"
        coro = getattr(coro, "cr_await", None) or getattr(coro, "gi_yieldfrom", None)
    return found


_LIBRARIES = (str(Path(asyncio.__file__).parent), str(Path(__file__).parent))


def _keep_for_good(thing: object) -> None:
    """Never let Python collect it, not even when the process ends."""
    try:
        import ctypes  # not every build of Python has it
    except ImportError:
        _KEPT.append(thing)
    else:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


_KEPT: list[object] = []


def _as_completed_codes() -> dict[CodeType, tuple[str, str]]:
    if iterator := getattr(asyncio.tasks, "_AsCompletedIterator", None):  # since 3.13
        return {iterator.__init__.__code__: ("aws", "aw")}
    return {asyncio.as_completed.__code__: ("fs", "f")}


_AS_COMPLETED = _as_completed_codes()
"""The code that makes the tasks, with its names for what it was given and for the one it is at."""
