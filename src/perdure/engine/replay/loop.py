"""The event loop of a workflow's body. It has no clock, no threads and no sockets, so it is deterministic.

The worker calls `pump` after it passed the body an input (a step's result, a timer that fired); the body then runs
until all its tasks wait. Nothing else makes it run. So the behaviour of the body depends only on its code and on the
order of its inputs, and that order is the run's history.

Three features of Python would still make it non-deterministic, and are avoided here:
 - sets of tasks and futures are ordered by hash, which is an address: here the hash is a number (`BodyTask`);
 - `as_completed` makes its tasks in the order of a set of coroutines: see `_AsCompleted`;
 - the garbage collector may run any clean-up code at any time: it is off while the body runs.
"""

import asyncio
import gc
import math
import sys
from collections import deque
from collections.abc import (
    AsyncGenerator,
    Callable,
    Coroutine,
    Generator,
    Iterable,
    Mapping,
    MutableSequence,
    Sequence,
    Set,
    ValuesView,
)
from contextvars import Context, copy_context
from functools import partial
from pathlib import Path
from types import CodeType, CoroutineType, FrameType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar, TypeVarTuple, Unpack
from zlib import crc32

from perdure.engine.replay.guard import came_by_signal
from perdure.engine.replay.scopes import Scope, current_scope, enter
from perdure.errors import NotDurableError
from perdure.model import limits

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

STEP_CALLBACKS = 20
"""Callbacks that a row may cause for each open step: ending a task with a timeout inside a group takes about ten."""

BUDGET = STEP_CALLBACKS * limits.STEPS_MAX
"""Maximum number of callbacks between two rows: enough to end as many steps as a run may have open."""

NEVER_SEC = 100 * 365.25 * 86400.0
"""A timer with a longer delay never fires and is not stored, because databases cannot store `sleep(inf)`."""

_WAYS = {
    "run_in_executor set_default_executor shutdown_default_executor": "make it a plain function with @activity, which "
    "runs in a thread",
    "call_soon_threadsafe": "send the run an event or a message instead",
    "add_signal_handler remove_signal_handler": "cancel the run or send it an event from outside",
    "run_forever run_until_complete stop": "the engine runs the body; await it instead",
    "set_task_factory get_task_factory": "the engine makes the body's tasks",
    "set_exception_handler get_exception_handler": "the engine logs errors of tasks that are never awaited; use "
    "@workflow.on_failure",
}
_ANY_WAY = "move it into an activity"


def _refusal(name: str) -> Callable[..., None]:
    way = next((way for names, way in _WAYS.items() if name in names.split()), _ANY_WAY)

    def refuse(*_: object, **__: object) -> None:
        raise NotDurableError(f"loop.{name}() cannot be used in a workflow's body, as it could not be replayed: {way}")

    return refuse


if TYPE_CHECKING:
    # The refusing methods are added by name, which a type checker cannot see; this class has all of them.
    _Refusing = asyncio.SelectorEventLoop
else:
    _PUBLIC = [name for name in vars(asyncio.AbstractEventLoop) if not name.startswith("_")]
    _Refusing = type("_Refusing", (asyncio.AbstractEventLoop,), {name: _refusal(name) for name in _PUBLIC})


class Timer(asyncio.TimerHandle):
    """A timer of the body: `path` identifies it, `delay` is in seconds from the loop's time at its creation.

    A timer that is due at once, or never, does not wait (`waiting` is False from the start), and `Timers` does not
    know it.
    """

    __slots__ = ("delay", "path", "waiting")

    def __init__(self, delay: float, when: float, *handle: Any) -> None:
        super().__init__(when, *handle)
        self.delay = delay
        self.path = ""
        self.waiting = False

    # The base class compares by time and callback, which would make two `sleep(5)` the same key of a dict.
    __eq__ = object.__eq__  # pyright: ignore[reportAssignmentType]
    __hash__ = object.__hash__


class Timers(Protocol):
    """Keeps the body's timers and passes them to `BodyLoop.fire` when they are due; logs what the loop reports."""

    def start(self, timer: Timer) -> None:
        """Add a timer that the body started. Errors are raised in the body."""

    def drop(self, timer: Timer) -> None:
        """Remove a timer that the body cancelled before it fired."""

    def path_of(self, coro: "CoroutineType[Any, Any, Any]") -> str | None:
        """Return the path that a coroutine already has, for the task that is made for it; else None."""

    def report(self, context: Mapping[str, Any]) -> None:
        """Log an error that no code of the body can catch."""

    def closed(self) -> "Timers":
        """Return what logs such errors after the loop was closed, and does not refer to it."""


class BodyTask(asyncio.Task[T]):
    """A task whose position in a set depends on its number, not on its address.

    `TaskGroup` cancels its tasks, and `asyncio.wait` returns them, in the order of sets.
    """

    __slots__ = ("_code_context", "_hash")
    _log_destroy_pending: bool

    def __init__(self, coro: Coroutine[Any, Any, T], *, number: int, context: Context, **options: Any) -> None:
        self._hash = number  # set first, because the base class adds the task to a set
        self._code_context = context
        super().__init__(coro, context=context, **options)

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        return f"<task {self.get_name()!r} of a workflow>"  # asyncio's errors show it

    def close(self, coro: "CoroutineType[Any, Any, Any]") -> bool:
        """Close one of the task's coroutines in its own context; return False if it ignores that and continues."""
        loop = self.get_loop()
        asyncio.tasks._enter_task(loop, self)
        try:
            self._code_context.run(coro.close)
        except BaseException as error:
            if came_by_signal(error):
                raise
            if isinstance(error, RuntimeError) and "ignored GeneratorExit" in str(error):
                return False
            if isinstance(error, Exception):  # others, such as `RunEvicted`, are how a body ends here
                loop.call_exception_handler(
                    {"message": f"a task raised {error!r} when it was removed from memory", "exception": error}
                )
        finally:
            asyncio.tasks._leave_task(loop, self)
        return True


class BodyFuture(asyncio.Future[T]):
    """A future whose hash is a number too, assigned at first use, so that futures of the worker don't count."""

    __slots__ = ("_hash",)
    _hash: int

    def __hash__(self) -> int:
        try:
            return self._hash
        except AttributeError:
            loop = self.get_loop()
            assert isinstance(loop, BodyLoop)
            self._hash = loop.next_future_number()
            return self._hash


class BodyLoop(_Refusing):
    """A deterministic event loop that runs only when the worker calls `pump`, in the thread of the worker's loop.

    `seed` makes the hashes of tasks differ between runs and must be the same on every replay of a run: asyncio keeps
    the tasks of all loops in one set, which would be slow if the first tasks of ten thousand runs had the same hash.
    """

    __slots__ = (
        "_closed",
        "_entered",
        "_futures_made",
        "_ordered",
        "_pumping",
        "_ready",
        "_root",
        "_root_task",
        "_seed",
        "_tasks",
        "_tasks_made",
        "_time",
        "get_debug",
        "timers",
    )

    def __init__(self, timers: Timers, *, seed: str = "") -> None:
        self.timers = timers
        self._ready: MutableSequence[asyncio.Handle] = []  # a deque only while it runs, because it takes 800 bytes
        self._time = 0.0
        self._root = Scope()
        self._root_task: BodyTask[Any] | None = None
        self._tasks: dict[BodyTask[Any], None] | None = None  # the others, so that none is garbage-collected
        self._ordered: dict[int, asyncio.Task[Any]] = _NOTHING_ORDERED
        self._seed = crc32(seed.encode()) & 0x3FFFFFFF
        self._tasks_made = self._futures_made = 0
        self._entered = self._pumping = self._closed = False
        self.get_debug: Callable[[], bool] = bool  # False; a method would cost more, and each future and handle asks

    # The worker's side

    def spawn(self, coroutine: Coroutine[Any, Any, T], *, name: str | None = None) -> asyncio.Task[T]:
        """Return the root task, in a copy of the caller's context; it runs at the next `pump`."""
        self._root_task = self._new_task(coroutine, self._root, name or "body", copy_context(), {})
        return self._root_task

    def pump(self, budget: int = BUDGET) -> None:
        """Run the body until all its tasks wait. Raise `NotDurableError` if it takes more than `budget` callbacks.

        A task or a callback of the worker may call this. The running loop, the current task, the hooks for async
        generators and the garbage collector are restored afterwards, also after an error. SystemExit and
        KeyboardInterrupt are raised only if a signal caused them; those of the body's code are outcomes of its tasks.
        """
        assert not self._pumping, "the body is running: pump was called from inside it"
        if self._closed:
            self._check_open()
        if self._entered:
            self._run_ready(budget)
        else:
            self.inside(self._run_ready, budget)

    def inside(self, work: Callable[[Unpack[Ts]], object], *args: *Ts) -> None:
        """Call a function that calls `pump` many times; what `pump` does before and after happens only once."""
        host, hooks, collecting = asyncio._get_running_loop(), sys.get_asyncgen_hooks(), gc.isenabled()
        task = asyncio.current_task(host) if host is not None else None
        self._entered, self._ready = True, deque(self._ready)
        try:
            gc.disable()
            if host is not None and task is not None:  # since Python 3.14 a thread has one current task for all loops
                asyncio.tasks._leave_task(host, task)
            sys.set_asyncgen_hooks(firstiter=None, finalizer=self._abandoned)
            asyncio._set_running_loop(self)
            work(*args)
        finally:
            asyncio._set_running_loop(host)
            if host is not None and task is not None:
                asyncio.tasks._enter_task(host, task)
            sys.set_asyncgen_hooks(*hooks)
            if collecting:
                gc.enable()
            self._entered, self._ready = False, list(self._ready)

    def _run_ready(self, budget: int) -> None:
        ready = self._ready
        assert isinstance(ready, deque), "it is one inside"
        self._pumping = True
        try:
            while ready:
                budget -= 1
                if budget < 0:
                    raise NotDurableError(
                        f"the body spins at {_place(ready[0])}: it ran {BUDGET:,} callbacks of its event loop without "
                        "waiting for a step, a message or a timer; await one of these, or an asyncio.Event, instead of "
                        "polling"
                    )
                handle = ready.popleft()
                if handle._cancelled:
                    continue
                try:
                    handle._run()
                except (SystemExit, KeyboardInterrupt) as error:
                    self._interrupted(handle, error)
        finally:
            self._pumping = False

    def _interrupted(self, handle: asyncio.Handle, error: BaseException) -> None:
        if came_by_signal(error):
            raise error
        if not isinstance(_owner(handle), asyncio.Task):  # in a task, it is the outcome of the task
            self.timers.report({"message": f"a callback of the body raised {error!r}", "exception": error})

    def fire(self, timer: Timer) -> None:
        """Fire a due timer: advance the loop's time to the timer's time, unless it is later, and queue its callback."""
        if timer.waiting:
            timer.waiting = False
            self._time = max(self._time, timer.when())
            self._ready.append(timer)

    def advance(self, time: float) -> None:
        """Advance the loop's time to a time of the history; it never goes back."""
        self._time = max(self._time, time)

    @property
    def idle(self) -> bool:
        """Return whether there is no task and nothing to run."""
        return not self.tasks() and not self._ready

    def tasks(self) -> Set[asyncio.Task[Any]]:
        """Return the unfinished tasks in the order of their creation."""
        return {task: None for task in self._all_tasks() if not task.done()}.keys()

    def _all_tasks(self) -> "Iterable[BodyTask[Any]]":
        others = self._tasks or ()
        return others if self._root_task is None else (self._root_task, *others)

    def abandon(self, tries: int) -> bool:
        """Close the tasks that ignore their cancellation; return False if one of them cannot be closed.

        Such a task catches every exception. It is never garbage-collected, because Python would then run it again,
        in an arbitrary context, and print a warning.
        """
        stubborn: list[object] = []

        def end_all() -> None:
            for task in self.tasks():
                assert isinstance(task, BodyTask)
                for coro in _coroutines(task):
                    if not any(task.close(coro) for _ in range(tries)):
                        stubborn.append(coro)

        self._ready = [asyncio.Handle(end_all, (), self)]
        self.pump(1)
        for each in stubborn:
            _keep_for_good(each)
        return not stubborn

    def close(self) -> None:
        """Close the loop without cancelling anything; unfinished tasks are not reported."""
        assert not self._pumping, "the body is running: close was called from inside it"
        self._closed = True
        self._ready.clear()
        for task in self._all_tasks():
            task._log_destroy_pending = False
        # The others refer to this loop: without a cycle it is freed at once.
        self.timers, self._root_task, self._ordered = self.timers.closed(), None, _NOTHING_ORDERED

    # The interface for asyncio

    def call_soon(
        self, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        """Queue a callback behind those that are ready, in the caller's scope unless `context` has another."""
        if self._closed:
            self._check_open()
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def call_later(
        self, delay: float, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> Timer:
        """Start a durable timer; with a delay of 0 or less, queue the callback at once, like `call_soon`."""
        return self._timer(Timer(max(delay, 0.0), self._time + delay, callback, args, self, context))

    def call_at(
        self, when: float, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> Timer:
        """Start a durable timer for a time of this loop; if that is not in the future, queue the callback at once."""
        return self._timer(Timer(max(when - self._time, 0.0), when, callback, args, self, context))

    def _timer(self, timer: Timer) -> Timer:
        self._check_open()
        if math.isnan(timer.when()):
            raise ValueError("the time of a timer must be a number, not nan")
        if timer.delay <= 0:
            self._ready.append(timer)
            return timer
        timer.path = self._scope().next()
        if timer.delay <= NEVER_SEC:
            self.timers.start(timer)
            timer.waiting = True
        return timer

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Handle `Timer.cancel`; after the loop is closed, that is only Python's clean-up and is ignored."""
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
        """Return a task with its own scope; `context` is copied, because two tasks may get the same one."""
        self._check_open()
        if (origin := _AsCompleted.calling(sys._getframe(1))) is not None:
            return self._as_ordered(origin, coro)
        path = (self.timers.path_of(coro) if type(coro) is CoroutineType else None) or self._scope().next()
        context = copy_context() if context is None else context.copy()
        # The default name of asyncio has the number of all tasks in the process, which is not deterministic.
        return self._task(coro, Scope(path), f"Task-{path}" if name is None else name, context, options)

    def _task(self, coro: Any, scope: Scope, name: object, context: Context, options: Any) -> asyncio.Task[Any]:
        task = self._new_task(coro, scope, name, context, options)
        if not task.done():  # an eager task may be
            if self._tasks is None:
                self._tasks = {}
            self._tasks[task] = None
            task.add_done_callback(self._finished, context=context)
        return task

    def _new_task(self, coro: Any, scope: Scope, name: object, context: Context, options: Any) -> "BodyTask[Any]":
        enter(context, scope)
        self._tasks_made += 1
        number = self._numbered(self._tasks_made)
        return BodyTask(coro, number=number, loop=self, name=name, context=context, **options)

    def _finished(self, task: Any) -> None:
        assert self._tasks is not None, "the task is in it"
        del self._tasks[task]

    def _as_ordered(self, origin: "_AsCompleted", coro: Any) -> asyncio.Task[Any]:
        """Return the task for an awaitable of `as_completed`; the first call makes all tasks, in the list's order."""
        key = id(origin.current)
        if key not in self._ordered:
            self._ordered = {id(one): asyncio.ensure_future(one, loop=self) for one in origin.awaitables()}
        if coro is not origin.current:
            coro.close()  # a wrapper that asyncio made for an awaitable that already has a task
        return self._ordered.pop(key)

    def next_future_number(self) -> int:
        """Return the hash of the next future that needs one."""
        self._futures_made += 1
        return self._numbered(self._futures_made)

    def _numbered(self, number: int) -> int:
        return (self._seed << 32) + number  # the number in the low bits, so that small sets are ordered

    def create_future(self) -> asyncio.Future[Any]:
        """Return a future of this loop."""
        return BodyFuture(loop=self)

    def time(self) -> float:
        """Return the seconds since the body started; timers that fire and rows with a time advance it."""
        return self._time

    def is_running(self) -> bool:
        """Return whether the body runs now."""
        return self._pumping

    def is_closed(self) -> bool:
        """Return whether `close` was called."""
        return self._closed

    def set_debug(self, enabled: bool) -> None:
        """Set whether asyncio records where tasks and handles are created."""
        self.get_debug = partial(bool, enabled)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Report an error that no code of the body can catch."""
        self.timers.report(context)

    default_exception_handler = call_exception_handler

    async def shutdown_asyncgens(self) -> None:
        """Do nothing: a generator is closed when the body drops its last reference."""

    def _check_open(self) -> None:
        if self._closed:
            raise RuntimeError("Event loop is closed")

    def _scope(self) -> Scope:
        return current_scope() or self._root

    def _abandoned(self, generator: AsyncGenerator[Any, Any]) -> None:
        """Close an async generator that the body dropped; report a generator that only the garbage collector found."""
        if asyncio._get_running_loop() is self:
            self.create_task(generator.aclose())
        elif not self._closed:
            message = "an async generator was left in a reference cycle and not closed: use contextlib.aclosing"
            self.timers.report({"message": message, "asyncgen": generator})


_NOTHING_ORDERED: dict[int, asyncio.Task[Any]] = {}


class _AsCompleted(NamedTuple):
    """A call of `asyncio.as_completed` that is making its tasks.

    It iterates over `set(awaitables)`, whose order depends on addresses, so the paths of the tasks would not be
    deterministic. The order of the list that was passed to it is used instead.
    """

    given: object
    current: object

    @classmethod
    def calling(cls, frame: FrameType | None) -> "_AsCompleted | None":
        """Return the `as_completed` call that makes a task, if any: search from `frame` up through asyncio's frames."""
        inner = frame
        while frame is not None and frame.f_globals is vars(asyncio.tasks):
            if names := _AS_COMPLETED.get(frame.f_code):
                given, current = names
                # Python 3.11 runs the comprehension in its own frame; before that, iterating over `given` makes tasks.
                inside = {**frame.f_locals, **(inner.f_locals if inner is not None else {})}
                return cls(inside[given], inside[current]) if current in inside else None
            inner, frame = frame, frame.f_back
        return None

    def awaitables(self) -> list[Any]:
        """Return the awaitables that are not futures, each once, in the order of the argument."""
        if not isinstance(self.given, Sequence | ValuesView):
            raise NotDurableError(
                f"as_completed() in a workflow's body needs a list, not a {type(self.given).__name__}: without an "
                "order of the awaitables it is not deterministic"
            )
        return list({id(one): one for one in self.given if not asyncio.isfuture(one)}.values())


def _owner(handle: asyncio.Handle) -> object:
    """Return the object, usually a task, that the callback of a handle is a method of."""
    return getattr(getattr(handle, "_callback", None), "__self__", None)


def _place(handle: asyncio.Handle) -> str:
    """Return the file, line and function of the user's code in which a callback continues."""
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
    """Return the innermost frame of a suspended coroutine that is neither asyncio's nor this package's."""
    found = None
    while coro is not None:
        frame = getattr(coro, "cr_frame", None) or getattr(coro, "gi_frame", None)
        if frame is not None and not frame.f_code.co_filename.startswith(_LIBRARIES):
            found = f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_qualname}"
        coro = getattr(coro, "cr_await", None) or getattr(coro, "gi_yieldfrom", None)
    return found


_LIBRARIES = (str(Path(asyncio.__file__).parent), str(Path(__file__).parent))


def _coroutines(task: "BodyTask[Any]") -> "list[CoroutineType[Any, Any, Any]]":
    """Return the coroutine of a task, then the one that it awaits, and so on: an outer one may end before these."""
    found: list[CoroutineType[Any, Any, Any]] = []
    coro: object = task.get_coro()
    while isinstance(coro, CoroutineType):
        found.append(coro)
        coro = coro.cr_await
    return found


def _keep_for_good(thing: object) -> None:
    """Keep an object from ever being garbage-collected, even at the end of the process."""
    try:
        import ctypes  # missing in some builds of Python
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
"""The code objects that make the tasks, with the names of the variables for the argument and the current item."""
