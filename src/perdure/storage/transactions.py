"""Transactions, and the way every operation of the other rooms takes to the database.

The open transaction travels in a context variable that belongs to one storage object, so two storages never mix. It
belongs to the task that began it: a task spawned inside sees it too, and is refused unless it says `detached()`,
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
    """A transaction under way: whose it is, and what to call after its commit, level by level."""

    __slots__ = ("callbacks", "session", "task")

    def __init__(self, session: Session) -> None:
        self.session: Session | None = session
        self.task = asyncio.current_task()
        self.callbacks: list[list[Callback]] = [[]]


class Transactions:
    """The base of every storage: its backend, its open transaction, and how operations run."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._open: ContextVar[_Open | None] = ContextVar("perdure_transaction", default=None)

    def _current(self) -> _Open | None:
        """The transaction this task has open."""
        found = self._open.get()
        if found is None or found.session is None:
            return None
        if found.task is not asyncio.current_task():
            raise TransactionError(
                "this task was spawned inside a transaction of another task: use `with storage.detached():` "
                "to work outside it"
            )
        return found

    async def _read(self, operation: Callable[P, Operation[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run an operation that only reads, and that an index serves."""
        return await self._run_read(Work(lambda: operation(*args, **kwargs)), bounded=True)

    async def _scan(self, operation: Callable[P, Operation[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run an operation that only reads, but may read much."""
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
        """Run one operation an item in one commit; gives the result or the error of each, in order."""
        works = prepared(build, items)
        return await self._run(Work(lambda: together(works))) if works else []

    async def begin_transaction(self) -> None:
        """Open a transaction for this task; inside one, a savepoint."""
        tx = self._current()
        if tx is None:
            self._open.set(_Open(await self._backend.begin()))
        else:
            await _session(tx).savepoint(len(tx.callbacks))
            tx.callbacks.append([])

    async def commit_transaction(self) -> None:
        """Commit the innermost level. After the outermost the callbacks run, in order, outside the transaction."""
        tx = self._current()
        if tx is None:
            raise TransactionError("there is no transaction to commit")
        if len(tx.callbacks) > 1:
            await _session(tx).release(len(tx.callbacks) - 1)
            callbacks = tx.callbacks.pop()
            tx.callbacks[-1].extend(callbacks)
            return
        session, tx.session = _session(tx), None
        self._open.set(None)
        await _to_the_end(_commit(session, tx.callbacks[0]))

    async def rollback_transaction(self) -> None:
        """Undo the innermost level and forget its callbacks; without a transaction nothing happens."""
        tx = self._current()
        if tx is None:
            return
        if len(tx.callbacks) > 1:
            tx.callbacks.pop()
            await _session(tx).rollback_to(len(tx.callbacks))
            return
        session, tx.session = _session(tx), None
        self._open.set(None)
        await _to_the_end(session.rollback())

    @contextlib.asynccontextmanager
    async def transaction(self) -> AsyncIterator[Executor]:
        """Commit what the block did, or undo it if the block raises or is cancelled."""
        await self.begin_transaction()
        try:
            yield self.conn()
            await self.commit_transaction()
        except BaseException:
            await self.rollback_transaction()  # also of a level whose commit failed; after the outermost there is none
            raise

    def in_transaction(self) -> bool:
        """True exactly while this task has a transaction open."""
        found = self._open.get()
        return found is not None and found.session is not None and found.task is asyncio.current_task()

    def conn(self) -> Executor:
        """The open transaction, or the pool, for a caller's own SQL."""
        tx = self._current()
        return self._backend.executor() if tx is None else _session(tx)

    def register_post_commit_callback(self, callback: Callback) -> None:
        """Call it once after the outermost commit; a rollback of this level forgets it."""
        tx = self._current()
        if tx is None:
            raise TransactionError("a post-commit callback needs an open transaction")
        tx.callbacks[-1].append(callback)

    @contextlib.contextmanager
    def detached(self) -> Iterator[None]:
        """Work outside the transaction that this task was spawned in (or has open)."""
        token = self._open.set(None)
        try:
            yield
        finally:
            self._open.reset(token)


def bounded(items: Sequence[Item]) -> Sequence[Item]:
    """A batch that is written or read by one statement: at most a page."""
    if len(items) > limits.PAGE_MAX:
        raise LimitError(f"a batch has at most {limits.PAGE_MAX} items, not {len(items)}")
    return items


def prepared(build: Callable[[Item], Work[T]], items: Sequence[Item]) -> list[Work[T] | StorageError]:
    """The operation of each item of a batch, or the error that it is refused with."""
    works: list[Work[T] | StorageError] = []
    for item in items:
        try:
            works.append(build(item))
        except StorageError as error:
            works.append(error)
    return works


def together(works: Sequence[Work[T] | StorageError]) -> Operation[list[T | StorageError]]:
    """The operations of a batch one after the other; one that is refused is undone and takes nobody with it."""
    results: dict[int, T | StorageError] = {}
    ordered = sorted(enumerate(works), key=lambda item: "" if isinstance(item[1], StorageError) else item[1].row)
    for position, work in ordered:
        results[position] = work if isinstance(work, StorageError) else (yield from _item(work))
    return [results[position] for position in range(len(works))]


def _item(work: Work[T]) -> Operation[T | StorageError]:
    if work.single:  # refused, it has written nothing
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
                "post-commit callback %s failed, the transaction is committed: %s: %s",
                name,
                type(error).__name__,
                error,
                extra={"callback": name, "error_type": type(error).__name__, "error_message": str(error)},
            )


async def _to_the_end(ending: Awaitable[T]) -> T:
    """Let a commit or rollback finish however often the task is cancelled meanwhile, then pass the cancellation on."""
    task = asyncio.ensure_future(ending)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is None:
        return task.result()
    if not task.cancelled():
        task.exception()  # the cancellation is what the caller hears of
    raise cancelled
