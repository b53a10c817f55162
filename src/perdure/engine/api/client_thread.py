"""A Client with an event loop in a thread of its own, which threads of a blocking program call."""

import asyncio
import contextvars
import copy
import logging
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import Any, TypeVar

from perdure.engine.api.client import Client
from perdure.engine.api.database import Database
from perdure.errors import ClosedError, EngineError, PerdureError
from perdure.storage.contract import Storage

T = TypeVar("T")
Work = Callable[[Client], Coroutine[Any, Any, T]]

log = logging.getLogger("perdure.engine")


class NotBegun(Exception):
    """The thread has ended, or is about to, and the call has not begun."""


class Interrupted(Exception):
    """The thread ended during the call, which may have had its effect."""


class ThreadClient(Client):
    """The client of a thread. Calls that name no client must not find it: they don't run on its event loop."""

    def _new_database(self, given: str | Storage) -> Database:
        return Database(given, "SyncClient")

    def _announce(self) -> None:
        """Stay hidden."""

    def _withdraw(self) -> None:
        """Stay hidden."""


class ClientThread:
    """Opens a client in a new thread, passes calls to it, and closes it there.

    The thread is a daemon, so it never keeps the process alive. Its first frame refers to everything that it opened: in
    a process that is forked meanwhile, where the thread does not exist, nothing of that is ever collected. So no
    finalizer changes what the two processes share, such as the registrations of the selector.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._loop = asyncio.SelectorEventLoop()  # that of a policy, such as uvloop's, may not survive a fork
        self._lock = threading.RLock()  # a signal handler may make a call, too
        self._calls: set[Future[Any]] = set()  # guarded by the lock; the other collections belong to the thread
        self._tasks: dict[Future[Any], asyncio.Task[Any]] = {}
        self._waits: set[Future[Any]] = set()
        self._opened: Future[None] = Future()
        self._main: asyncio.Task[None] | None = None
        self._stop = asyncio.Event()
        self._is_stopping = False
        self._patience_sec = 0.0
        self.ended = False
        self._thread = threading.Thread(target=self._run, name="perdure-sync-client", daemon=True)
        self._thread.start()

    # Called by any thread.

    def wait_until_open(self) -> None:
        """Wait until the client is open; raise what opening it raised, or `NotBegun` if the thread ended before."""
        try:
            self._opened.result()
        except PerdureError as error:
            raise _copy(error) from error.__cause__  # several threads may wait, and each adds its frames

    def call(self, work: Work[T], *, is_wait: bool) -> T:
        """Run a coroutine on the client and return its result; `is_wait` says that it only waits for something."""
        if threading.current_thread() is self._thread:
            raise EngineError(
                "a SyncClient was called in its own thread, such as by a handler of its log messages, and would wait "
                "for itself: call it in another thread"
            )
        future: Future[T] = Future()
        with self._lock:
            if self.ended:
                raise NotBegun
            try:
                # In a context of its own: that of the caller may have an App, an activity or a transaction.
                self._loop.call_soon_threadsafe(self._begin, future, work, is_wait, context=contextvars.Context())
            except RuntimeError:  # the loop failed and is closed; the thread has yet to report that
                raise NotBegun from None
            self._calls.add(future)
        try:
            return future.result()
        except BaseException:  # such as KeyboardInterrupt
            if not future.done():
                self._abandon(future)
            raise
        finally:
            with self._lock:
                self._calls.discard(future)
            del future  # it has the error, whose traceback has this frame

    def _abandon(self, future: "Future[Any]") -> None:
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._cancel, future)

    def stop(self, patience_sec: float = 0.0) -> None:
        """Let the thread close the client and end. Calls that are not waits get so many seconds to finish."""
        self._patience_sec = patience_sec
        self._is_stopping = True
        with suppress(RuntimeError):  # it has ended
            self._loop.call_soon_threadsafe(self._interrupt)

    def join(self, timeout_sec: float | None = None) -> bool:
        """Wait until the thread has ended, at most so long; return whether it has."""
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout_sec)
        return self.ended

    # In the thread.

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
                try:
                    runner.run(self._serve())
                finally:
                    self._is_stopping = True  # the runner now cancels the calls; one that came later would never end
        except BaseException as error:
            if self._opened.done():
                log.error(
                    "the thread of a SyncClient failed; the next call opens the database again: %s: %s",
                    type(error).__name__,
                    error,
                    exc_info=error,
                )
            else:
                self._opened.set_exception(NotBegun() if isinstance(error, asyncio.CancelledError) else error)
        finally:
            self._end()

    async def _serve(self) -> None:
        self._main = asyncio.current_task()
        if self._is_stopping:
            return
        async with self._client:
            self._opened.set_result(None)
            await self._stop.wait()
            await self._end_calls()

    def _interrupt(self) -> None:
        self._stop.set()
        if self._main is not None and not self._opened.done():
            self._main.cancel()

    def _begin(self, future: "Future[T]", work: Work[T], is_wait: bool) -> None:
        if self._is_stopping:
            _settle(future, NotBegun())
            return
        task = self._tasks[future] = self._loop.create_task(work(self._client))
        if is_wait:
            self._waits.add(future)
        task.add_done_callback(lambda done: self._done(future, done))

    def _done(self, future: "Future[T]", task: "asyncio.Task[T]") -> None:
        self._tasks.pop(future, None)
        self._waits.discard(future)
        error = None if task.cancelled() else task.exception()
        if task.cancelled() or isinstance(error, ClosedError):  # if the loop failed, the client closes before its tasks
            _settle(future, Interrupted())
        elif error is not None:
            _settle(future, _copy(error) if isinstance(error, PerdureError) else error)
        else:
            with suppress(InvalidStateError):
                future.set_result(task.result())

    def _cancel(self, future: "Future[Any]") -> None:
        if future in self._tasks:
            self._tasks[future].cancel()

    async def _end_calls(self) -> None:
        tasks = dict(self._tasks)
        for future in self._waits:
            tasks[future].cancel()
        others = [task for future, task in tasks.items() if future not in self._waits]
        if others and self._patience_sec:
            await asyncio.wait(others, timeout=self._patience_sec)
        for task in others:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks.values())

    def _end(self) -> None:
        if not self._opened.done():
            self._opened.set_exception(NotBegun())
        with self._lock:
            self.ended = True
            left = list(self._calls)
        for future in left:  # a task of a loop that failed never ends
            _settle(future, Interrupted() if future in self._tasks else NotBegun())


def _settle(future: "Future[Any]", error: BaseException) -> None:
    with suppress(InvalidStateError):  # it is done already
        future.set_exception(error)


def _copy(error: PerdureError) -> PerdureError:
    """Return an error of the caller's own: callers that wait for one commit get the same error object."""
    mine = copy.copy(error)
    mine.__cause__, mine.__suppress_context__ = error.__cause__, error.__suppress_context__
    return mine.with_traceback(error.__traceback__)
