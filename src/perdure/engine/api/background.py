"""The thread of a `SyncClient`: started by the first call, and anew by the first call in a forked process.

A fork copies no thread. On PostgreSQL and MySQL the new process leaves what the thread had opened alone and opens its
own connections. SQLite's locks do not allow that, so there the thread ends before the fork, and both processes start a
new one when they need it.
"""

import atexit
import logging
import os
import threading
import warnings
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor as ThreadPoolExecutor  # its fork hooks must be registered before ours
from typing import TypeVar

from perdure.engine.api.client import Client
from perdure.engine.api.client_thread import ClientThread, Interrupted, NotBegun, Work
from perdure.errors import ClosedError, EngineError

T = TypeVar("T")

log = logging.getLogger("perdure.engine")

FORK_SEC = 10.0  # time for calls under way to finish before a fork
EXIT_SEC = 5.0  # time to close the connections when the process exits

_CLOSED = "this SyncClient is closed: make another one, or close it later"


class Background:
    """Runs coroutines on a client in a thread, for any thread of this process.

    `ends_at_fork` says that the client may not be open during a fork.
    """

    def __init__(self, new_client: Callable[[], Client], *, ends_at_fork: bool) -> None:
        self._new_client = new_client
        self._ends_at_fork = ends_at_fork
        self._lock = threading.RLock()  # a signal handler may make a call, too
        self._thread: ClientThread | None = None
        self._is_closed = False
        self._is_unusable = False
        with _registry:
            _all.add(self)

    def call(self, work: Work[T], *, is_wait: bool = False) -> T:
        """Run a coroutine and return its result; raise `ClosedError` if the thread is closed meanwhile.

        `is_wait` says that the coroutine only waits for something, and can be repeated.
        """
        while True:
            thread = self._open()
            try:
                thread.wait_until_open()
                return thread.call(work, is_wait=is_wait)
            except NotBegun:
                thread.join()  # it ends for a fork, or has failed; if it was closed, _open() raises
            except Interrupted:
                if self._is_closed:
                    raise ClosedError(
                        "this SyncClient was closed during the call, which may have had its effect; runs are not "
                        "affected: use a SyncClient that stays open"
                    ) from None
                if not is_wait:
                    raise EngineError(
                        "the call was interrupted, because the process forked and the database did not answer in "
                        f"{FORK_SEC:g} s, or because the thread of this SyncClient failed (see the log); it may have "
                        "had its effect: check, and repeat it"
                    ) from None

    def _open(self) -> ClientThread:
        with self._lock:
            if self._is_closed:
                raise ClosedError(_CLOSED)
            if self._is_unusable:
                raise EngineError(
                    "this process was forked while this SyncClient had the SQLite file open, which could damage the "
                    "file: make the SyncClient, or use it for the first time, after the fork"
                )
            if self._thread is None or self._thread.ended:
                self._thread = ClientThread(self._new_client())
            return self._thread

    def close(self) -> None:
        """Close the client and end the thread. Calls under way in other threads raise `ClosedError`."""
        with self._lock:
            self._is_closed = True
            thread = self._thread
        if thread is not None:
            thread.stop()
            thread.join()

    def __del__(self) -> None:
        thread = getattr(self, "_thread", None)
        if thread is not None and not thread.ended and not self._is_closed:
            text = "a SyncClient was not closed: use `with`, or close()"
            warnings.warn(text, ResourceWarning, stacklevel=2, source=self)
            thread.stop()

    # At the exit and at forks of the process.

    def close_at_exit(self) -> None:
        """Say goodbye to the server, which would log a lost connection; a file needs no goodbye."""
        with self._lock:
            self._is_closed = True
            thread = self._thread
        if thread is not None and not self._ends_at_fork:
            thread.stop()
            thread.join(EXIT_SEC)

    def before_fork(self) -> None:
        """Hold back new calls until the fork is done; end the thread if the client may not be open meanwhile."""
        self._lock.acquire()
        if self._ends_at_fork and self._thread is not None and not self._thread.ended:
            self._thread.stop(FORK_SEC)
            if not self._thread.join(2 * FORK_SEC):
                log.warning(
                    "the process forks while a SyncClient has a SQLite file open, because the file could not be closed "
                    "within %g s: the SyncClient cannot be used in the new process",
                    2 * FORK_SEC,
                )

    def after_fork(self) -> None:
        """Continue in the process that forked."""
        self._lock.release()

    def after_fork_in_child(self) -> None:
        """Begin anew in the forked process, where only the thread exists that forked."""
        self._lock = threading.RLock()
        if self._thread is not None and not self._thread.ended:
            _left_alone.append(self._thread)
            self._is_unusable = self._ends_at_fork
        self._thread = None


_registry = threading.Lock()
_all: "weakref.WeakSet[Background]" = weakref.WeakSet()
_forking: list[Background] = []
_left_alone: list[ClientThread] = []  # those of the process that forked this one


def _before_fork() -> None:
    _registry.acquire()
    _forking.extend(_all)
    for each in _forking:
        each.before_fork()


def _after_fork() -> None:
    for each in _forking:
        each.after_fork()
    _forking.clear()
    _registry.release()


def _after_fork_in_child() -> None:
    global _registry
    _registry = threading.Lock()
    _forking.clear()
    for each in list(_all):
        each.after_fork_in_child()


def _close_at_exit() -> None:
    with _registry:
        left = list(_all)
    for each in left:
        each.close_at_exit()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork_in_child)
atexit.register(_close_at_exit)
