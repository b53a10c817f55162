"""A storage proxy that counts the writes of one worker and disturbs one of them.

It works on any storage, by the names of the contract's operations. Only the commits of the worker count: a write of its
own, or the commit of a transaction with several writes, which is named `commit`.
"""

import asyncio
import inspect
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from functools import partial, wraps
from typing import Any, cast

from perdure.database.backends.base import Executor
from perdure.errors import CommitUnknownError, DatabaseUnavailableError, StorageError
from perdure.model.records import ChannelWait, OutgoingMessage
from perdure.storage.contract import Storage
from perdure.testing.crashes.points import Kind, Point, Write

POLL_SEC = 0.001
COMMIT = "commit"
_READS = ("get_", "list_", "find_", "count_", "next_", "pending_")
# They say that a worker is alive or prepare it; a crash there is a crash before or after the write next to it.
_OWN = {
    "initialize", "close", "now", "define_workflows", "beat_worker", "refresh_lock", "refresh_locks", "release_lock",
    "clear_stuck", "begin_transaction", "commit_transaction", "rollback_transaction",
    "try_acquire_system_lock", "release_system_lock", "cleanup_expired_system_locks", "cleanup_stale_locks",
}  # fmt: skip
_SEARCHES = {"deliver_pending", "acquire_locks", "fire_timers", "expire_channel_waits", "get_pending_outbox_events"}
_OPERATIONS = {name for name, each in inspect.getmembers(Storage) if inspect.iscoroutinefunction(each)}
WRITES = {name for name in _OPERATIONS - _OWN if not name.startswith(_READS)} | {"get_pending_outbox_events"}

Call = Callable[[], Awaitable[Any]]


class _RolledBack(Exception):
    """Ends a transaction that is not to be committed."""


class Gate:
    """What one worker has written, and what happens to it: at `target` it dies, is paused or gets an error.

    `at_point` is called when the target is reached, outside any transaction, and `uses` with each channel that is used.
    """

    def __init__(
        self, target: Point | None, at_point: Callable[[], Awaitable[None]], uses: Callable[[str], None]
    ) -> None:
        self._uses = uses
        self.target = target
        self.writes: list[Write] = []
        self.calls = 0  # under way
        self.reached = False
        self.is_dead = False
        self.is_paused = False
        self.is_closing = False
        self._at_point = at_point
        self._counts = Counter[str]()

    def awaits(self, operation: str, kinds: Callable[[Kind], bool]) -> bool:
        """Return whether the next write of this operation is the target, and one of these kinds."""
        target = self.target
        if target is None or self.reached or target.operation != operation:
            return False
        return target.number == self._counts[operation] + 1 and kinds(target.kind)

    def count(self, operation: str, *, enclosed: bool = False) -> None:
        """Count a write that has changed something."""
        self._counts[operation] += 1
        self.writes.append(Write(operation, self._counts[operation], operation in _SEARCHES, enclosed))

    def note_channels(self, values: Iterable[object]) -> None:
        """Note the channels in the arguments of a call."""
        for value in values:
            if isinstance(value, ChannelWait | OutgoingMessage):
                self._uses(value.channel)
            elif isinstance(value, list | tuple):
                self.note_channels(value)

    async def enter(self) -> None:
        """Let a call of a live worker pass; one of a paused worker waits, and one of a dead worker never returns."""
        while self.is_paused:  # noqa: ASYNC110 - the heartbeat asks from another loop
            await asyncio.sleep(POLL_SEC)
        if self.is_dead:
            await self._never()

    async def disturb(self, *, at_once: bool = False) -> None:
        """Do what happens at the target; `at_once` inside a transaction, which must not stay open."""
        assert self.target is not None
        kind, self.reached = self.target.kind, True
        await self._at_point()
        if kind.is_death:
            self.is_dead = True
            if at_once:
                raise _dead()
            await self._never()
        if kind.is_takeover:
            self.is_paused = True
            await self.enter()
        else:
            raise CommitUnknownError(f"the connection was lost during {self.target.operation} (crash_everywhere)")

    async def _never(self) -> None:
        """Wait until the remains of a dead worker are removed, and raise what ends its tasks without a write."""
        while not self.is_closing:  # noqa: ASYNC110 - the heartbeat asks from another loop
            await asyncio.sleep(POLL_SEC)
        raise _dead()


def _dead() -> DatabaseUnavailableError:
    return DatabaseUnavailableError("this worker is dead (crash_everywhere)")


class StorageProxy:
    """A storage whose operations pass through a gate. Use `behind()`, which has the type of a storage."""

    def __init__(self, storage: Storage, gate: Gate) -> None:
        self._storage, self._gate = storage, gate

    def __getattr__(self, name: str) -> object:
        found = getattr(self._storage, name)
        return self._guarded(name, found) if name in _OPERATIONS else found

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        """Return the class of the storage behind, so that `isinstance` sees no difference."""
        return type(self._storage)

    def _guarded(self, name: str, operation: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        @wraps(operation)
        async def guarded(*args: object, **kwargs: object) -> Any:
            await self._gate.enter()
            self._gate.note_channels(args)
            if name == "publish_to_channel":
                self._gate.note_channels([OutgoingMessage(str(args[0]), b"")])
            self._gate.calls += 1
            try:
                if name not in WRITES:
                    return await operation(*args, **kwargs)
                return await self._write(name, partial(operation, *args, **kwargs))
            finally:
                self._gate.calls -= 1

        return guarded

    async def _write(self, name: str, call: Call) -> Any:
        if self._storage.in_transaction():
            return await self._write_enclosed(name, call)
        gate = self._gate
        if name not in _SEARCHES and gate.awaits(name, lambda kind: kind.is_first):
            await gate.disturb()
        if gate.awaits(name, lambda kind: kind.is_rolled_back):
            answer = await self._roll_back(name, call)
        else:
            answer = await call()
        if _has_changed(name, answer):
            is_target = gate.awaits(name, lambda kind: not kind.is_first)
            gate.count(name)
            if is_target:
                await gate.disturb()
        await gate.enter()
        return answer

    async def _write_enclosed(self, name: str, call: Call) -> Any:
        answer = await call()
        if _has_changed(name, answer):
            is_target = self._gate.awaits(name, lambda kind: kind.is_rolled_back)
            self._gate.count(name, enclosed=True)
            if is_target:
                with self._storage.detached():
                    await self._gate.disturb(at_once=True)
        return answer

    async def _roll_back(self, name: str, call: Call) -> Any:
        """Execute a write and undo it, unless it changed nothing and so is not the one to be disturbed."""
        answer: Any = None
        try:
            async with self._storage.transaction():
                answer = await call()
                if _has_changed(name, answer):
                    raise _RolledBack
        except _RolledBack:
            pass
        return answer

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Executor]:
        """Open a transaction, or a savepoint inside one; its commit is counted and may be disturbed."""
        gate = self._gate
        await gate.enter()
        if self._storage.in_transaction():
            async with self._storage.transaction() as executor:
                yield executor
            return
        if gate.awaits(COMMIT, lambda kind: kind.is_first):
            await gate.disturb()  # before the transaction is open, because it may block other workers
        gate.calls += 1
        try:
            async with self._storage.transaction() as executor:
                yield executor
                if gate.awaits(COMMIT, lambda kind: kind.is_rolled_back):
                    raise _RolledBack
        except _RolledBack:
            pass
        finally:
            gate.calls -= 1
        is_target = gate.awaits(COMMIT, lambda kind: not kind.is_first)
        gate.count(COMMIT)
        if is_target:
            await gate.disturb()
        await gate.enter()


def behind(gate: Gate, storage: Storage) -> Storage:
    """Return the storage with all its operations behind a gate."""
    return cast(Storage, StorageProxy(storage, gate))


def _has_changed(name: str, answer: object) -> bool:
    """Return whether a write changed something, by its answer."""
    if isinstance(answer, list):
        return any(_has_changed(name, each) for each in answer)
    if answer is None:
        return not name.startswith(("acquire_", "try_acquire_"))
    return not isinstance(answer, StorageError) and answer is not False
