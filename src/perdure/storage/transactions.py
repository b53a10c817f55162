"""Manage transactions, and run the operations of all aggregates on the database.

The open transaction is kept in a context variable that belongs to one storage object, so two storages never mix. It
belongs to the task that began it. A task spawned inside sees it too, and gets an error unless it uses `detached()`,
because two tasks on one connection would write into each other's transaction.
"""

import asyncio
import contextlib
import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextvars import ContextVar
from typing import ParamSpec, TypeVar

from perdure.database.backends.base import Backend, Executor, Session
from perdure.database.cancellation import finish
from perdure.database.operation import Operation, Work
from perdure.errors import LimitError, StorageError, TransactionError
from perdure.model import limits
from perdure.storage.sql import load_statements

T = TypeVar("T")
P = ParamSpec("P")
Item = TypeVar("Item")
S = load_statements("transactions")
log = logging.getLogger("perdure.storage")

Callback = Callable[[], Awaitable[object] | object]


class _Open:
    """Hold an open transaction: its task, and the callbacks of each level to run after its commit."""

    __slots__ = ("callbacks", "session", "task")

    def __init__(self, session: Session) -> None:
        self.session: Session | None = session
        self.task = asyncio.current_task()
        self.callbacks: list[list[Callback]] = [[]]


class Transactions:
    """Hold a storage's backend and open transaction, and run its operations."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._features = backend.driver.features
        self._open: ContextVar[_Open | None] = ContextVar("perdure_transaction", default=None)

    def _current(self) -> _Open | None:
        """Return the transaction that this task has open, or None."""
        found = self._open.get()
        if found is None or found.session is None:
            return None
        if found.task is not asyncio.current_task():
            raise TransactionError(
                "this task was spawned inside a transaction of another task and cannot use it: "
                "use `with storage.detached():` to work outside it"
            )
        return found

    async def _read(self, operation: Callable[P, Operation[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run an operation that only reads, and is served by an index."""
        return await self._run_read(Work(lambda: operation(*args, **kwargs)), bounded=True)

    async def _scan(self, operation: Callable[P, Operation[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run an operation that only reads, but may read many rows."""
        return await self._run_read(Work(lambda: operation(*args, **kwargs)), bounded=False)

    async def _run_read(self, work: Work[T], *, bounded: bool) -> T:
        tx = self._current()
        if tx is not None and tx.session is not None:
            return await tx.session.operate(work)
        return await self._backend.read(work, bounded=bounded)

    async def _write(self, operation: Callable[P, Operation[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run an operation in one transaction: the open one, or one of its own."""
        return await self._run(Work(lambda: operation(*args, **kwargs)))

    async def _run(self, work: Work[T]) -> T:
        tx = self._current()
        if tx is not None and tx.session is not None:
            return await tx.session.operate(work)
        return await self._backend.write(work)

    async def _batch(self, build: Callable[[Item], Work[T]], items: Sequence[Item]) -> list[T | StorageError]:
        """Run one operation per item in one commit; return the result or the error of each, in order."""
        works = prepared(build, items)
        return await self._run(Work(lambda: together(works))) if works else []

    async def begin_transaction(self) -> None:
        """Open a transaction for this task, or a savepoint inside an open one."""
        tx = self._current()
        if tx is None:
            self._open.set(_Open(await self._backend.begin()))
        else:
            await _session(tx).savepoint(len(tx.callbacks))
            tx.callbacks.append([])

    async def commit_transaction(self) -> None:
        """Commit the innermost level. After the outermost commit the callbacks run, in order, outside a transaction."""
        tx = self._current()
        if tx is None:
            raise TransactionError("there is no open transaction to commit: call begin_transaction() first")
        if len(tx.callbacks) > 1:
            await _session(tx).release(len(tx.callbacks) - 1)
            callbacks = tx.callbacks.pop()
            tx.callbacks[-1].extend(callbacks)
            return
        session, tx.session = _session(tx), None
        self._open.set(None)
        await finish(_commit(session, tx.callbacks[0]))

    async def rollback_transaction(self) -> None:
        """Undo the innermost level and discard its callbacks; do nothing without a transaction."""
        tx = self._current()
        if tx is None:
            return
        if len(tx.callbacks) > 1:
            tx.callbacks.pop()
            await _session(tx).rollback_to(len(tx.callbacks))
            return
        session, tx.session = _session(tx), None
        self._open.set(None)
        await finish(session.rollback())

    @contextlib.asynccontextmanager
    async def transaction(self) -> AsyncIterator[Executor]:
        """Commit what the block wrote, or undo it if the block raises or is cancelled."""
        await self.begin_transaction()
        try:
            yield self.conn()
            await self.commit_transaction()
        except BaseException:
            await self.rollback_transaction()  # also a level whose commit failed; a no-op after the outermost
            raise

    def in_transaction(self) -> bool:
        """Return True exactly while this task has a transaction open."""
        found = self._open.get()
        return found is not None and found.session is not None and found.task is asyncio.current_task()

    def conn(self) -> Executor:
        """Return the open transaction, or the pool, for a caller's own SQL."""
        tx = self._current()
        return self._backend.executor() if tx is None else _session(tx)

    def register_post_commit_callback(self, callback: Callback) -> None:
        """Call the callback once after the outermost commit; a rollback of this level discards it."""
        tx = self._current()
        if tx is None:
            raise TransactionError("a post-commit callback needs an open transaction: register it inside transaction()")
        tx.callbacks[-1].append(callback)

    @contextlib.contextmanager
    def detached(self) -> Iterator[None]:
        """Work outside the transaction that this task has open or was spawned in."""
        token = self._open.set(None)
        try:
            yield
        finally:
            self._open.reset(token)


def bounded(items: Sequence[Item]) -> Sequence[Item]:
    """Return the batch if one statement can write or read it: at most a page."""
    if len(items) > limits.PAGE_MAX:
        raise LimitError(f"a batch must have at most {limits.PAGE_MAX} items, not {len(items)}")
    return items


def prepared(build: Callable[[Item], Work[T]], items: Sequence[Item]) -> list[Work[T] | StorageError]:
    """Return the operation of each item of a batch, or the error that rejects it."""
    works: list[Work[T] | StorageError] = []
    for item in items:
        try:
            works.append(build(item))
        except StorageError as error:
            works.append(error)
    return works


def together(works: Sequence[Work[T] | StorageError]) -> Operation[list[T | StorageError]]:
    """Run the operations of a batch one after the other; a rejected operation is undone and affects no other."""
    results: dict[int, T | StorageError] = {}
    ordered = sorted(enumerate(works), key=lambda item: "" if isinstance(item[1], StorageError) else item[1].row)
    for position, work in ordered:
        results[position] = work if isinstance(work, StorageError) else (yield from _item(work))
    return [results[position] for position in range(len(works))]


def _item(work: Work[T]) -> Operation[T | StorageError]:
    if work.single:  # if rejected, it has written nothing
        try:
            return (yield from work.start())
        except StorageError as error:
            return error
    yield S.savepoint()
    try:
        result: T | StorageError = yield from work.start()
    except StorageError as error:
        yield S.undo()
        result = error
    yield S.release()
    return result


def _session(tx: _Open) -> Session:
    assert tx.session is not None, "an open transaction has a session"
    return tx.session


async def _commit(session: Session, callbacks: list[Callback]) -> None:
    await session.commit()
    for callback in callbacks:
        try:
            answer = callback()
            if inspect.isawaitable(answer):
                await answer
        except Exception as error:
            name = getattr(callback, "__qualname__", None) or repr(callback)
            log.exception(
                "post-commit callback %s failed after the transaction was committed: %s: %s",
                name,
                type(error).__name__,
                error,
                extra={"callback": name, "error_type": type(error).__name__, "error_message": str(error)},
            )
