"""The guard around user code: its errors end an attempt or a run, but never the worker.

When a task ends with `SystemExit` or `KeyboardInterrupt`, asyncio raises it from the event loop, and that ends the
program. A `sys.exit()` deep inside a library that an activity calls would end the worker, then the next worker that
leases the run, and so on. So both are caught inside the task that runs user code, and recorded like any other error.

A real Ctrl-C must still stop the program. Two facts distinguish it from an error of user code: an exception that a
signal handler raised has the handler's frame in its traceback, and Python's own handler for SIGINT, which is written in
C and has no frame, raises between two instructions of the interrupted code and not by a `raise` statement.
"""

import asyncio
import dis
import functools
import signal
import threading
import traceback
from collections.abc import Awaitable, Callable, Coroutine
from types import CodeType
from typing import Any, TypeVar

from perdure.engine.replay.context import ATTEMPT
from perdure.errors import ActivityError

T = TypeVar("T")


def came_by_signal(error: BaseException) -> bool:
    """Return whether a signal handler raised the error, and not the interrupted code."""
    if not isinstance(error, SystemExit | KeyboardInterrupt):
        return False
    if threading.current_thread() is not threading.main_thread():
        return False  # Python runs signal handlers in the main thread only
    frames = [frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__)]
    if any(_code_of(signal.getsignal(each)) in frames for each in signal.valid_signals()):
        return True
    default = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    return default and isinstance(error, KeyboardInterrupt) and not _is_raised_by_statement(error)


def _code_of(handler: Any) -> CodeType | None:
    while isinstance(handler, functools.partial):  # as that of asyncio.Runner
        handler = handler.func
    code = getattr(handler, "__code__", None)
    return code if isinstance(code, CodeType) else None


def _is_raised_by_statement(error: BaseException) -> bool:
    last = error.__traceback__
    if last is None:
        return True
    while last.tb_next is not None:
        last = last.tb_next
    return dis.opname[last.tb_frame.f_code.co_code[last.tb_lasti]] in ("RAISE_VARARGS", "RERAISE")


def is_cancelled() -> bool:
    """Return whether this task is being cancelled from outside; otherwise its own code raised a `CancelledError`."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def is_interruption(error: BaseException) -> bool:
    """Return whether an error ends this task from outside (a signal or a cancellation); otherwise its code failed."""
    return came_by_signal(error) or (isinstance(error, asyncio.CancelledError) and is_cancelled())


async def outcome_of(call: Callable[[], Awaitable[T]]) -> tuple[T | None, BaseException | None]:
    """Call user code as the whole content of a task; return its result, and its error if it is no `Exception`.

    Otherwise asyncio would raise some of these errors from its loop, and a `GeneratorExit` would close the code that
    awaits the task. Exceptions and cancellations are raised.
    """
    try:
        return await call(), None  # called here: a task that is cancelled before it starts leaves no coroutine
    except (Exception, asyncio.CancelledError):
        raise
    except BaseException as error:
        if came_by_signal(error):
            raise
        return None, error


class TaskFactory:
    """Guards the tasks that activities start on the program's loop, such as those of a `TaskGroup`.

    Other tasks of the program are not affected. It is installed while an App is open on the loop.
    """

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self._users = 0

    @classmethod
    def install(cls) -> "Callable[[], None]":
        """Install the factory on the running loop, and return the function that removes it."""
        loop = asyncio.get_running_loop()
        found = loop.get_task_factory()
        factory = found if isinstance(found, cls) else cls(found)
        if factory is not found:
            loop.set_task_factory(factory)
        factory._users += 1

        def remove() -> None:
            factory._users -= 1
            if not factory._users and loop.get_task_factory() is factory:
                loop.set_task_factory(factory._inner)

        return remove

    def __call__(self, loop: asyncio.AbstractEventLoop, coro: Any, **options: Any) -> "asyncio.Future[Any]":
        context = options.get("context")
        attempt = ATTEMPT.get() if context is None else context.get(ATTEMPT)
        if attempt is not None and getattr(coro, "cr_code", None) is not outcome_of.__code__:
            coro = _contained(coro)
        if self._inner is None:
            return asyncio.Task(coro, loop=loop, **options)
        made: asyncio.Future[Any] = self._inner(loop, coro, **options)
        return made


async def _contained(coro: Coroutine[Any, Any, T]) -> T:
    try:
        return await coro
    except (SystemExit, KeyboardInterrupt) as error:
        if came_by_signal(error):
            raise
        kind = type(error)
        raise ActivityError(
            f"a task of the activity ended with {kind.__qualname__}: {error}",
            error_type=f"{kind.__module__}.{kind.__qualname__}",
        ) from error
