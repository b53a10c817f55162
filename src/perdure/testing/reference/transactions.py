"""Manage transactions: a writer works on a copy of the tables, and its commit replaces them by the copy.

One task writes at a time; other writers wait for its commit. Readers see what is committed.
"""

import asyncio
import contextlib
import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextvars import ContextVar
from datetime import datetime, timedelta
from functools import wraps
from typing import Any, Concatenate, NoReturn, ParamSpec, Self, TypeVar

from perdure.errors import ConfigurationError, TransactionError
from perdure.model.records import WakeUp
from perdure.testing.reference.tables import Tables, World

P = ParamSpec("P")
T = TypeVar("T")
S = TypeVar("S", bound="Transactions")
Callback = Callable[[], Awaitable[object] | object]
PAUSE_SEC = 0.008  # between two hints, which many commits share

log = logging.getLogger("perdure.storage")


class _NoSQL:
    """Stand in for a connection, which a reference does not have."""

    async def execute(self, query: str, *args: object) -> NoReturn:
        """Raise `ConfigurationError`."""
        raise ConfigurationError("the reference storage runs no SQL: use a storage on SQLite for that")

    fetch = fetchrow = fetchval = execute

    @property
    def native(self) -> None:
        """Return None: there is no native connection."""


class _Level:
    """Hold a transaction or a savepoint: the tables as they were before it, and callbacks to run after the commit."""

    def __init__(self, before: Tables) -> None:
        self.before = before
        self.callbacks: list[Callback] = []


class _Open:
    """Hold an open transaction: its task, its own tables, and its levels."""

    def __init__(self, committed: Tables) -> None:
        self.task = asyncio.current_task()
        self.tables = committed.copy()
        self.levels = [_Level(committed)]


class Transactions:
    """Hold the tables, the clock and the open transaction."""

    def __init__(self, world: World | None = None) -> None:
        self._world = world or World()
        self._open: ContextVar[_Open | None] = ContextVar("perdure_reference_transaction", default=None)
        self._shift = timedelta(0)
        self._now = self._world.clock()

    async def initialize(self) -> None:
        """Do nothing: there is no connection."""

    async def pending_migrations(self) -> list[str]:
        """Return no versions: there is no schema."""
        return []

    async def close(self) -> None:
        """Do nothing: no connection is held."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def wakeups(self) -> AsyncIterator[WakeUp]:
        """Yield a hint at once, and whenever a storage on the same world has changed something."""
        yield WakeUp("scan")
        with self._world.listening() as changed:
            while True:
                await changed.wait()
                changed.clear()
                yield WakeUp("scan")
                await asyncio.sleep(PAUSE_SEC)

    def shift_clock(self, shift: timedelta) -> None:
        """Set how far the clock of this storage's operations is ahead of the clock of its world."""
        self._shift = shift

    _shift_clock = shift_clock  # as tests call it on every storage

    @property
    def _tables(self) -> Tables:
        """Return the tables that this task sees: its own transaction's, or the committed ones."""
        tx = self._current()
        return self._world.tables if tx is None else tx.tables

    def _current(self) -> _Open | None:
        tx = self._open.get()
        if tx is None or not tx.levels:
            return None
        if tx.task is not asyncio.current_task():
            raise TransactionError(
                "this task was spawned inside a transaction of another task and cannot use it: "
                "use `with storage.detached():` to work outside it"
            )
        return tx

    async def begin_transaction(self) -> None:
        """Open a transaction for this task, once no other task writes; inside one, a savepoint."""
        tx = self._current()
        if tx is not None:
            tx.levels.append(_Level(tx.tables.copy()))
            return
        await self._world.begin_writing()
        self._open.set(_Open(self._world.tables))

    async def commit_transaction(self) -> None:
        """Keep what the innermost level wrote. After the outermost commit the callbacks run, in order, outside it."""
        tx = self._current()
        if tx is None:
            raise TransactionError("there is no open transaction to commit: call begin_transaction() first")
        level = tx.levels.pop()
        if tx.levels:
            tx.levels[-1].callbacks += level.callbacks
            return
        self._world.commit(tx.tables)
        self._end()
        for callback in level.callbacks:
            await _call(callback)

    async def rollback_transaction(self) -> None:
        """Undo the innermost level and discard its callbacks; do nothing without a transaction."""
        tx = self._current()
        if tx is None:
            return
        tx.tables = tx.levels.pop().before
        if not tx.levels:
            self._end()

    def _end(self) -> None:
        self._open.set(None)
        self._world.end_writing()

    @contextlib.asynccontextmanager
    async def transaction(self) -> AsyncIterator[_NoSQL]:
        """Commit what the block wrote, or undo it if the block raises or is cancelled."""
        await self.begin_transaction()
        try:
            yield self.conn()
        except BaseException:
            await self.rollback_transaction()
            raise
        await self.commit_transaction()

    def in_transaction(self) -> bool:
        """Return True exactly while this task has a transaction open."""
        tx = self._open.get()
        return tx is not None and bool(tx.levels) and tx.task is asyncio.current_task()

    def conn(self) -> _NoSQL:
        """Return an executor that rejects all SQL."""
        return _NoSQL()

    def db(self) -> _NoSQL:
        """Return an executor that rejects all SQL."""
        return _NoSQL()

    def register_post_commit_callback(self, callback: Callback) -> None:
        """Call the callback once after the outermost commit; a rollback of this level discards it."""
        tx = self._current()
        if tx is None:
            raise TransactionError("a post-commit callback needs an open transaction: register it inside transaction()")
        tx.levels[-1].callbacks.append(callback)

    @contextlib.contextmanager
    def detached(self) -> Iterator[None]:
        """Work outside the transaction that this task has open or was spawned in."""
        token = self._open.set(None)
        try:
            yield
        finally:
            self._open.reset(token)

    @contextlib.contextmanager
    def _undone_if_refused(self) -> Iterator[None]:
        """Undo what a rejected operation, or a rejected item of a batch, has written."""
        tx = self._current()
        assert tx is not None, "only a transaction writes"
        before = tx.tables.copy()
        try:
            yield
        except BaseException:
            tx.tables = before
            raise

    def _read_clock(self) -> None:
        """Fix the time of one operation."""
        self._now = self._world.clock() + self._shift

    def _after(self, seconds: float) -> datetime:
        return self._now + timedelta(seconds=seconds)


async def _call(callback: Callback) -> None:
    try:
        answer = callback()
        if inspect.isawaitable(answer):
            await answer
    except Exception:
        log.exception("a post-commit callback failed after the transaction was committed")


def reads(method: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[S, P], Coroutine[Any, Any, T]]:
    """Run an operation that only reads."""

    @wraps(method)
    async def run(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        with self._world.mutex:
            self._read_clock()
            return method(self, *args, **kwargs)

    return run


def writes(method: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[S, P], Coroutine[Any, Any, T]]:
    """Run an operation that writes, all or nothing: in the open transaction, or in one of its own."""

    @wraps(method)
    async def run(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        if self._current() is None:
            async with self.transaction():
                with self._world.mutex:
                    self._read_clock()
                    return method(self, *args, **kwargs)
        with self._world.mutex, self._undone_if_refused():
            self._read_clock()
            return method(self, *args, **kwargs)

    return run
