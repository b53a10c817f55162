"""Every operation, alone and in a transaction of the caller, with every kind of fault at each of its calls.

An operation is run once to learn its calls, the state before and after it, and the call after which other connections
see its effect. Then, for every case, on the same state:
- a caller that gets a result finds the operation done, with the same result; a caller that gets an error finds nothing
  of it, unless the error says that the outcome is unknown, which is allowed only if the commit may have been sent;
- no other connection ever sees half of it;
- nothing is held: the pool is complete, and no session has an open transaction;
- repeating the operation, where nothing was done, does it; and the storage still works.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import product
from typing import Any

from perdure.errors import (
    CommitUnknownError,
    DatabaseUnavailableError,
    SchemaError,
    StorageError,
    TransactionConflictError,
    TransactionError,
)
from perdure.model.records import WorkflowInstance
from perdure.storage.stores import PostgresStorage, SQLStorage, open_storage
from tests.faults import instance_operations, message_operations, other_operations  # noqa: F401 - they fill the table
from tests.faults.calls import Calls, Kind
from tests.faults.mysql_calls import watch_mysql
from tests.faults.operations import OPERATIONS, Act, stage
from tests.faults.postgres_calls import watch_postgres
from tests.faults.sqlite_calls import watch_sqlite
from tests.faults.table_snapshots import SESSION, SQLiteWatcher, State, Watcher, shape, watch
from tests.support.storages import Database

ALONE, INSIDE, CAUGHT = "alone", "inside", "caught"
APART = ("transaction__", "db__", "initialize__")  # which no transaction is put around
SEVERAL = {"beat_worker", "cleanup_old_channel_messages"}  # made of several transactions, each of them whole
PASSING = {  # pass over what is locked, in each of their forms
    *("fire_timers", "expire_channel_waits", "acquire_locks", "claim_instances", "deliver_pending")
}
BROKEN = (Kind.AFTER, Kind.HANG, Kind.LOSE)  # the old session may have its locks a little longer
ENDLESS_SEC = 20.0
RELEASED_SEC = 3.0


@dataclass(frozen=True, slots=True)
class Case:
    """One fault."""

    operation: str
    way: str
    kind: Kind
    number: int

    def __str__(self) -> str:
        return f"{self.operation}:{self.way}:{self.kind}:{self.number}"

    @classmethod
    def parse(cls, text: str) -> "Case":
        operation, way, kind, number = text.split(":")
        return cls(operation, way, Kind(kind), int(number))


@dataclass(frozen=True, slots=True)
class Baseline:
    """An operation when nothing goes wrong."""

    before: State
    after: State
    answer: Any
    calls: Sequence[str]
    turned: int  # the call from which on what it did may be seen
    without: State  # after a caller's transaction that continued without it


def attach(storage: SQLStorage, calls: Calls) -> None:
    """Count the calls of a storage that is not open yet."""
    ways = {"sqlite": watch_sqlite, "postgresql": watch_postgres, "mysql": watch_mysql}
    ways[storage._backend.driver.name](storage._backend, calls)


def all_pairs() -> list[tuple[str, str]]:
    """Every operation in every way."""
    pairs = product(OPERATIONS, (ALONE, INSIDE, CAUGHT))
    return [(name, way) for name, way in pairs if way == ALONE or not name.startswith(APART)]


class Enumerator:
    """Plays cases, one after the other, on one database."""

    def __init__(self, database: Database, hands: SQLStorage, watcher: Watcher) -> None:
        self._hands, self._watcher = hands, watcher
        names = {"sqlite": "", "postgresql": f"application_name={SESSION}&pool_size=2", "mysql": "pool_size=2"}
        options = names[database.backend]
        self._url = f"{database.url}{'&' if '?' in database.url else '?'}{options}" if options else database.url
        self._baselines: dict[tuple[str, str], Baseline] = {}

    async def cases(self, pairs: Sequence[tuple[str, str]]) -> list[Case]:
        """All cases of these operations."""
        found = []
        for name, way in pairs:
            baseline = await self.baseline(name, way)
            numbers = range(1, len(baseline.calls) + 1)
            kinds = [Kind.BEFORE] if way == CAUGHT else list(Kind)  # no caller continues after the others
            found += [Case(name, way, kind, number) for number, kind in product(numbers, kinds)]
        return found

    async def baseline(self, name: str, way: str) -> Baseline:
        """Return what the operation does without a fault; determined once."""
        if (name, way) not in self._baselines:
            found = await self._find_out(name, way)
            if any("typeinfo_tree" in call for call in found.calls):  # types are read once in a process
                found = await self._find_out(name, way)
            self._baselines[name, way] = found
        return self._baselines[name, way]

    async def _find_out(self, name: str, way: str) -> Baseline:
        calls, seen = Calls(self._watcher.kill), list[State]()
        act = await self._seed(name, way)
        before = await self._watcher.snapshot()
        async with self._victim(calls) as victim:
            calls.after_each = self._looking(seen)
            calls.armed = True
            answer = await act(victim)
            calls.armed = False
        after = await self._watcher.snapshot()
        halves = [state for state in seen if state not in (before, after)]
        assert not halves, f"{name} {way}: {_difference(halves[0], before)} was seen"
        firsts = [first for first, state in zip(calls.firsts, seen, strict=True) if state == after]
        turned = firsts[0] if firsts and before != after else len(seen) + 1
        return Baseline(before, after, shape(answer), calls.texts, turned, await self._without(name, way))

    async def _without(self, name: str, way: str) -> State:
        if way != CAUGHT:
            return ()
        await self._seed(name, way)
        async with self._hands.transaction():
            await _beside(self._hands)
        return await self._watcher.snapshot()

    def _looking(self, seen: list[State]) -> Callable[[], Awaitable[None] | None]:
        watcher = self._watcher
        if isinstance(watcher, SQLiteWatcher):
            return lambda: seen.append(watcher.look())

        async def look() -> None:
            seen.append(await watcher.snapshot())

        return look

    async def _seed(self, name: str, way: str) -> Act:
        await self._watcher.wipe()
        act = await OPERATIONS[name](stage(self._hands))
        return {ALONE: act, INSIDE: _inside(act), CAUGHT: _caught(act)}[way]

    @asynccontextmanager
    async def _victim(self, calls: Calls) -> AsyncIterator[SQLStorage]:
        """A storage with one connection, on which nothing was done yet."""
        storage = open_storage(self._url)
        attach(storage, calls)
        if isinstance(storage, PostgresStorage):
            notifier: Any = storage._postgres.notifier
            notifier.due = lambda _: True  # or the calls of an operation would depend on the time since the last
        await storage._connect()
        try:
            yield storage
        finally:
            await storage.close()

    async def outcome(self, case: Case) -> object:
        """Return what the caller gets: a result, or an error."""
        act = await self._seed(case.operation, case.way)
        calls = Calls(self._watcher.kill, case.kind, case.number)
        async with self._victim(calls) as victim:
            return await _run(act, victim, calls)

    async def state(self) -> State:
        """Return what is stored."""
        return await self._watcher.snapshot()

    async def play(self, case: Case) -> list[str]:
        """All that is wrong with a case."""
        baseline = await self.baseline(case.operation, case.way)
        act = await self._seed(case.operation, case.way)
        if (found := await self._watcher.snapshot()) != baseline.before:
            return [f"{case}: seeded otherwise: {_difference(found, baseline.before)}"]
        calls = Calls(self._watcher.kill, case.kind, case.number)
        async with self._victim(calls) as victim:
            outcome = await _run(act, victim, calls)
            judge = _Judge(case, baseline, calls, victim, self._watcher)
            await judge.check(outcome)
            await judge.go_on(act, outcome)
        return [f"{case} ({_call(calls, case)}): {wrong}" for wrong in judge.wrong]


def _call(calls: Calls, case: Case) -> str:
    return calls.texts[case.number - 1][:60] if calls.hit else "never called"


def _inside(act: Act) -> Act:
    """In a caller's transaction that writes something else as well."""

    async def act_inside(storage: SQLStorage) -> object:
        async with storage.transaction() as conn:
            await conn.execute("INSERT INTO system_locks (lock_name) VALUES ('beside')")
            return await act(storage)

    return act_inside


class Refused:
    """What a caller returns that continued without an operation."""


def _caught(act: Act) -> Act:
    """In a caller's transaction that does something else before, and is not stopped by an error."""

    async def act_caught(storage: SQLStorage) -> object:
        async with storage.transaction():
            await _beside(storage)
            try:
                return await act(storage)
            except StorageError:
                return Refused()

    return act_caught


async def _beside(storage: SQLStorage) -> None:
    await storage.create_instance(WorkflowInstance("beside", "wf"))


async def _run(act: Act, victim: SQLStorage, calls: Calls) -> object:
    """The answer of a call, or the error it ended with."""

    async def called() -> object:
        return await act(victim)

    calls.caller = asyncio.create_task(called())
    calls.armed = True
    await asyncio.wait([calls.caller], timeout=ENDLESS_SEC)
    calls.armed = False
    calls.over.set()
    if not calls.caller.done():
        calls.caller.cancel()
        return TimeoutError("it did not end")
    if calls.caller.cancelled():
        return asyncio.CancelledError()
    return calls.caller.exception() or calls.caller.result()


class _Judge:
    """Looks at what a case left."""

    def __init__(self, case: Case, baseline: Baseline, calls: Calls, victim: SQLStorage, watcher: Watcher) -> None:
        self.wrong: list[str] = []
        self._case, self._baseline, self._calls = case, baseline, calls
        self._victim, self._watcher = victim, watcher
        self._left: State = ()
        self._in_part = False  # some of a batch may have been skipped

    def _expect(self, fine: bool, what: str) -> None:
        if not fine:
            self.wrong.append(what)

    async def check(self, outcome: object) -> None:
        """What is there, and what is held."""
        self._expect(self._calls.hit, f"there was no such call: {self._calls.texts}")
        form = self._case.operation.partition("__")[0]
        if form in PASSING and self._case.kind in BROKEN and isinstance(outcome, list):
            await self._check_released()
            self._left = await self._watcher.snapshot()
            self._in_part = True
            return
        await self._look("at once")
        await self._check_released()
        await self._look("in the end")
        self._check_outcome(outcome)

    async def _look(self, when: str) -> None:
        self._left = await self._watcher.snapshot()
        half = self._left not in (self._baseline.before, self._baseline.after, self._baseline.without)
        self._expect(not half, f"{when} half of it is there: {_difference(self._left, self._baseline.before)}")

    async def _check_released(self) -> None:
        began = time.monotonic()
        while held := await self._held():
            if time.monotonic() - began > RELEASED_SEC:
                self.wrong.append(f"after {RELEASED_SEC} s this is still held: {held}")
                return
            await asyncio.sleep(0.002)

    async def _held(self) -> str:
        backend: Any = self._victim._backend
        if hasattr(backend, "_pool"):
            pool = backend._pool
            if pool._size != len(pool._idle) or pool._waiters:
                return f"{pool._size} connections, {len(pool._idle)} of them idle"
        else:
            await self._victim.db().fetch("SELECT 1")  # the writer has its turn after what it is doing
        return await self._watcher.held()

    def _check_outcome(self, outcome: object) -> None:
        case, baseline, left = self._case, self._baseline, self._left
        unsure = case.kind not in (Kind.BEFORE, Kind.CONFLICT) and case.number >= baseline.turned
        unsure = unsure or (case.kind is Kind.LOSE and self._outlived())
        match outcome:
            case asyncio.CancelledError():
                self._expect(self._calls.gave_up, "it is cancelled without a request")
            case CommitUnknownError():
                self._expect(
                    unsure or baseline.before == baseline.after,
                    "it reported an unknown outcome, but the outcome is known",
                )
            case SchemaError() if case.operation.startswith("initialize__"):
                lost = case.kind in BROKEN and hasattr(self._victim._backend, "_pool")
                self._expect(not lost, f"a lost connection is reported as {outcome!r}")
            case DatabaseUnavailableError() | TransactionConflictError() | Refused() if self._in_several():
                pass
            case DatabaseUnavailableError() | TransactionConflictError():
                self._expect(left == baseline.before, f"it was done, but the caller got {outcome!r}")
            case TransactionError() if case.way == CAUGHT:  # where a refusal ends the transaction
                self._expect(left == baseline.before, "a transaction that failed has left something")
            case BaseException():
                self.wrong.append(f"the caller got {outcome!r}, after {outcome.__cause__!r}")
            case Refused():
                self._expect(left == baseline.without, f"without it: {_difference(left, baseline.without)}")
            case _:
                if not self._found_nothing(outcome, unsure):
                    self._expect(left == baseline.after, "it was not done, but the caller got a result")
                    same = shape(outcome) == baseline.answer or self._unexplained(outcome)
                    self._expect(same, f"the answer is {outcome}, not {baseline.answer}")
        if self._calls.gave_up:
            self._expect(isinstance(outcome, asyncio.CancelledError), f"a cancelled caller got {outcome!r}")

    def _unexplained(self, outcome: object) -> bool:
        """Whether the answer differs only for items of a batch that are refused anyway: it is not known why."""
        if not self._case.operation.endswith("__one_refused") or not isinstance(outcome, list):
            return False
        pairs = zip(outcome, self._baseline.answer, strict=True)
        return all(
            shape(answer) == usual
            or (isinstance(answer, DatabaseUnavailableError | CommitUnknownError) and str(usual).endswith("Error"))
            for answer, usual in pairs
        )

    def _outlived(self) -> bool:
        """Whether a session that was being ended lived on until its commit was sent."""
        rest = [*self._calls.texts[self._case.number :], "connect"]
        return "COMMIT" in rest[: rest.index("connect")] or "COMMIT" in self._calls.sent_later

    def _in_several(self) -> bool:
        """Whether an earlier one of its transactions was committed."""
        return self._case.operation in SEVERAL and self._left == self._baseline.after

    def _found_nothing(self, outcome: object, unsure: bool) -> bool:
        """Whether it was done again, since no answer came, and there was nothing left to do; or nothing yet, since it
        skips what the old session, which is about to end, still has locked."""
        if (
            not _is_something(self._baseline.answer)
            or _is_something(outcome)
            or self._case.operation.endswith("__leased")
        ):
            return False
        return unsure if self._left == self._baseline.after else self._case.kind in BROKEN

    async def go_on(self, act: Act, outcome: object) -> None:
        """What the caller does then: again, if it was not done."""
        undone = self._left not in (self._baseline.after, self._baseline.without)
        if undone or (isinstance(outcome, BaseException) and self._left == self._baseline.before):
            try:
                answer = await asyncio.wait_for(_call_on(act, self._victim), ENDLESS_SEC)
            except Exception as error:
                self.wrong.append(f"doing it again gave {error!r}, after {error.__cause__!r}")
                return
            same = self._in_part or shape(answer) == self._baseline.answer
            self._expect(same, f"the second time the answer is {answer}")
            after = await self._watcher.snapshot()
            same = sorted(after) == sorted(self._baseline.after) if self._in_part else after == self._baseline.after
            self._expect(same, f"the second time: {_difference(after, self._baseline.after)}")
        await self._victim.create_instance(WorkflowInstance("alive", "wf"))
        self._expect(await self._victim.get_instance("alive") is not None, "the storage does not continue")
        await self._check_released()


def _is_something(answer: object) -> bool:
    return any(answer) if isinstance(answer, list) else bool(answer)


async def _call_on(act: Act, storage: SQLStorage) -> object:
    return await act(storage)


def _difference(found: State, expected: State) -> str:
    gone, come = [row for row in expected if row not in found], [row for row in found if row not in expected]
    return f"-{gone} +{come}"


@asynccontextmanager
async def enumerating(database: Database) -> AsyncIterator[Enumerator]:
    """An enumerator on a database that is empty."""
    watcher = await watch(database.backend, database.url)
    try:
        yield Enumerator(database, await database.storage(), watcher)
    finally:
        await watcher.close()
