"""The event loop of a body: it does not affect the host loop, moves time only by timers, and is deterministic."""

import asyncio
import contextlib
import gc
import hashlib
import json
import math
import os
import random
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping
from contextvars import ContextVar
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import uvloop

import perdure
from perdure.engine.replay.loop import NEVER_SEC, BodyLoop, Timer
from perdure.engine.replay.scopes import current_scope
from perdure.errors import NotDurableError

ROOT = Path(__file__).parents[3]
PACKAGE = Path(perdure.__file__).parent  # what is tested, wherever it is installed


class StepFailed(Exception):
    pass


class Record(NamedTuple):
    """One row of a history: which step or timer, and what came of it (None: a timer, negative: it failed)."""

    path: str
    outcome: int | None


class Host:
    """Passes a body what it waits for, one thing at a time, and records all that it asked for."""

    def __init__(self) -> None:
        self.reports: list[Mapping[str, Any]] = []
        self.loop = BodyLoop(self)
        self.waiting: dict[str, asyncio.Future[int] | Timer] = {}
        self.asked: list[str] = []
        self.log: list[str] = []
        self.task: asyncio.Task[Any] | None = None

    def start(self, timer: Timer) -> None:
        assert timer.path not in self.waiting
        self.asked.append(f"timer {timer.path} {timer.delay:.6f}")
        self.waiting[timer.path] = timer

    def path_of(self, coro: object) -> None:
        """No coroutine has a path of its own."""

    def report(self, context: Mapping[str, Any]) -> None:
        self.reports.append(context)

    def closed(self) -> "Host":
        return self

    def drop(self, timer: Timer) -> None:
        self.asked.append(f"drop {timer.path}")
        assert self.waiting.pop(timer.path) is timer

    async def step(self, label: str) -> int:
        """What a body awaits; its id is its place, and its result comes from the host."""
        scope = current_scope()
        assert scope is not None
        path = scope.next()
        assert path not in self.waiting
        self.asked.append(f"step {path} {label}")
        future: asyncio.Future[int] = self.loop.create_future()
        self.waiting[path] = future
        try:
            return await future
        finally:
            if self.waiting.get(path) is future:
                del self.waiting[path]

    def begin(self, body: Coroutine[Any, Any, Any]) -> None:
        self.task = self.loop.spawn(body)
        self.loop.pump()

    def give(self, record: Record) -> None:
        waiting = self.waiting.pop(record.path)
        if isinstance(waiting, Timer):
            self.loop.fire(waiting)
        elif record.outcome is not None and record.outcome < 0:
            waiting.set_exception(StepFailed(record.path))
        else:
            waiting.set_result(record.outcome or 0)
        self.loop.pump()

    def run(self, body: Coroutine[Any, Any, Any]) -> Any:
        """Run a body to its end, its timers in the order of their time, its steps with their number as result."""
        self.begin(body)
        assert self.task is not None
        while not self.task.done():
            steps = [path for path, waiting in self.waiting.items() if not isinstance(waiting, Timer)]
            timers = [waiting for waiting in self.waiting.values() if isinstance(waiting, Timer)]
            path = steps[0] if steps else min(timers, key=lambda timer: timer.when()).path
            self.give(Record(path, len(self.asked)))
        return self.task.result()


@pytest.fixture
def host() -> Host:
    return Host()


# Random bodies: a tree of the things people compose, played by one function.


class Node(NamedTuple):
    kind: str
    label: str
    number: int
    children: "list[Node]"


LEAVES = ["step", "step", "step", "sleep"]
KINDS = (
    "sequence gather group first all wait_for timeout queue lock semaphore event condition completed completed_tasks "
    "shield cancel generator soon".split()
)


def grow(rng: random.Random, depth: int, label: str = "r") -> Node:
    """Return a body of at most so many levels."""
    if depth == 0 or (depth < 3 and rng.random() < 0.25):
        return Node(rng.choice(LEAVES), label, rng.randint(1, 9), [])
    children = [grow(rng, depth - 1, f"{label}{letter}") for letter in "abcd"[: rng.randint(2, 4)]]
    return Node(rng.choice(KINDS), label, rng.randint(1, 9), children)


class Play:
    """A tree as a body: every decision it takes goes to the host's log."""

    def __init__(self, host: Host) -> None:
        self.host = host

    def note(self, *what: object) -> None:
        self.host.log.append(" ".join(map(str, what)))

    async def __call__(self, node: Node) -> str:
        result: object = "cancelled"
        try:
            result = await getattr(self, node.kind)(node)
        except (StepFailed, TimeoutError, ExceptionGroup) as error:
            result = type(error).__name__
            if node.number % 3 == 0:
                raise
        finally:
            self.note(node.kind, node.label, result)
        return f"{node.kind}:{result}"

    def tasks(self, nodes: Iterable[Node]) -> list[asyncio.Task[str]]:
        return [asyncio.create_task(self(node), name=node.label) for node in nodes]

    async def safely(self, awaitable: Awaitable[object]) -> object:
        (result,) = await asyncio.gather(awaitable, return_exceptions=True)
        return type(result).__name__ if isinstance(result, BaseException) else result

    async def step(self, node: Node) -> object:
        return await self.host.step(node.label)

    async def sleep(self, node: Node) -> object:
        await asyncio.sleep(node.number)
        return asyncio.get_running_loop().time()

    async def sequence(self, node: Node) -> object:
        return [await self(child) for child in node.children]

    async def gather(self, node: Node) -> object:
        results = await asyncio.gather(*map(self, node.children), return_exceptions=node.number % 2 == 0)
        return [str(result) for result in results]

    async def group(self, node: Node) -> object:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self(child)) for child in node.children]
        return [task.result() for task in tasks]

    async def first(self, node: Node) -> object:
        done, pending = await asyncio.wait(self.tasks(node.children), return_when=asyncio.FIRST_COMPLETED)
        for task in pending:
            self.note("cancels", task.get_name())
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
        return [(task.get_name(), await self.safely(task)) for task in done]

    async def all(self, node: Node) -> object:
        timeout = node.number if node.number % 2 else None
        done, pending = await asyncio.wait(self.tasks(node.children), timeout=timeout)
        return [await self.safely(task) for task in done], [task.get_name() for task in pending]

    async def wait_for(self, node: Node) -> object:
        return [await asyncio.wait_for(self(child), node.number) for child in node.children]

    async def timeout(self, node: Node) -> object:
        async with asyncio.timeout(node.number):
            return await self.gather(node)

    async def queue(self, node: Node) -> object:
        queue: asyncio.Queue[object] = asyncio.Queue(maxsize=1)

        async def produce(child: Node) -> None:
            await queue.put(await self.safely(self(child)))

        async with asyncio.TaskGroup() as group:
            for child in node.children:
                group.create_task(produce(child))
            return [await queue.get() for _ in node.children]

    async def lock(self, node: Node) -> object:
        return await self.under(asyncio.Lock(), node)

    async def semaphore(self, node: Node) -> object:
        return await self.under(asyncio.Semaphore(2), node)

    async def under(self, lock: asyncio.Lock | asyncio.Semaphore, node: Node) -> object:
        async def one(child: Node) -> str:
            async with lock:
                self.note("holds", child.label)
                return await self(child)

        return await asyncio.gather(*map(one, node.children), return_exceptions=True)

    async def event(self, node: Node) -> object:
        event = asyncio.Event()

        async def after(child: Node) -> str:
            await event.wait()
            return await self(child)

        waiters = [asyncio.create_task(after(child)) for child in node.children[1:]]
        try:
            await self(node.children[0])
        finally:
            event.set()
        return await asyncio.gather(*waiters, return_exceptions=True)

    async def condition(self, node: Node) -> object:
        condition, ended = asyncio.Condition(), list[str]()

        async def one(child: Node) -> None:
            await self.safely(self(child))
            async with condition:
                ended.append(child.label)
                condition.notify_all()

        async with asyncio.TaskGroup() as group:
            for child in node.children:
                group.create_task(one(child))
            async with condition:
                await condition.wait_for(lambda: len(ended) >= 2)
        return ended

    async def completed(self, node: Node) -> object:
        timeout = node.number if node.number % 2 else None
        return [await self.safely(one) for one in asyncio.as_completed([*map(self, node.children)], timeout=timeout)]

    async def completed_tasks(self, node: Node) -> object:
        return [await self.safely(one) for one in asyncio.as_completed(set(self.tasks(node.children)))]

    async def shield(self, node: Node) -> object:
        tasks = self.tasks(node.children)
        done, _ = await asyncio.wait({asyncio.shield(task) for task in tasks}, timeout=node.number)
        return [await self.safely(future) for future in done], [await self.safely(task) for task in tasks]

    async def cancel(self, node: Node) -> object:
        tasks = self.tasks(node.children[1:])
        result = await self.safely(self(node.children[0]))
        for task in set(tasks):
            task.cancel(node.label)
        return result, [await self.safely(task) for task in tasks]

    async def generator(self, node: Node) -> object:
        async def each() -> AsyncGenerator[str, None]:
            try:
                for child in node.children:
                    yield await self(child)
            finally:
                self.note("closes", await self.host.step(f"{node.label} closed"))

        async for result in each():
            if node.number % 2:
                return result
        return "all"

    async def soon(self, node: Node) -> object:
        loop, results = asyncio.get_running_loop(), asyncio.Queue[asyncio.Task[str]]()
        for child in node.children:
            loop.call_later(child.number % 3, lambda one: results.put_nowait(loop.create_task(self(one))), child)
        return [await self.safely(await results.get()) for _ in node.children]


class Life(NamedTuple):
    """All that may be seen of a run: what was given, what was asked and decided, and how far each was at any time."""

    history: list[Record]
    asked: list[str]
    log: list[str]
    states: list[tuple[int, int, float, tuple[str, ...], tuple[str, ...]]]
    result: str


def live(node: Node, *, recorded: Iterable[Record] = (), order: random.Random | None = None) -> Life:
    """Run a body on a history, and then on what `order` makes happen, to its end or that of the history."""
    host = Host()
    host.begin(Play(host)(node))
    history, states = list[Record](), [state(host)]
    for record in recorded:
        host.give(record)
        history.append(record)
        states.append(state(host))
    while order is not None and not done(host):
        history.append(happening(host, order))
        host.give(history[-1])
        states.append(state(host))
    result = outcome(host)
    end(host)
    return Life(history, host.asked[: states[-1][0]], host.log[: states[-1][1]], states, result)


def happening(host: Host, order: random.Random) -> Record:
    """Any step or timer that is waited for, as the world has no order; timers more seldom."""
    assert host.waiting, "the body waits for nothing"
    steps = [path for path, waiting in host.waiting.items() if not isinstance(waiting, Timer)]
    path = order.choice(steps if steps and order.random() < 0.7 else list(host.waiting))
    if isinstance(host.waiting[path], Timer):
        return Record(path, None)
    return Record(path, order.randint(0, 99) if order.random() < 0.85 else -1)


def state(host: Host) -> tuple[int, int, float, tuple[str, ...], tuple[str, ...]]:
    names = tuple(task.get_name() for task in host.loop.tasks())
    return len(host.asked), len(host.log), host.loop.time(), tuple(host.waiting), names


def done(host: Host) -> bool:
    return host.task is not None and host.task.done()


def outcome(host: Host) -> str:
    assert host.task is not None
    if not host.task.done():
        return "unfinished"
    error = host.task.exception()
    return repr(error) if error else str(host.task.result())


def end(host: Host) -> None:
    """Cancel what is left, so that no coroutine is closed by the collector."""
    while tasks := host.loop.tasks():
        for task in tasks:
            task.cancel()
        host.loop.pump()
    host.loop.close()


BODIES = 600


def noise(rng: random.Random) -> list[object]:
    """Objects that move the addresses of those made after them."""
    kept: list[object] = [bytearray(rng.randint(1, 900)) for _ in range(rng.randint(0, 60))]
    return kept[::2]


def test_random_bodies_are_deterministic_at_every_record() -> None:
    kinds, records = set(), 0
    for seed in range(BODIES):
        rng = random.Random(seed)
        node = grow(rng, 3)
        first = live(node, order=rng)
        _kept = noise(rng)
        assert live(node, recorded=first.history) == first, f"body {seed}"
        kinds |= {line.split()[0] for line in first.log}
        records += len(first.history)
    assert kinds >= {*KINDS, *LEAVES}
    assert records > 5 * BODIES


def test_random_bodies_resume_from_any_prefix() -> None:
    for seed in range(BODIES // 4):
        rng = random.Random(seed)
        node = grow(rng, 3)
        first = live(node, order=rng)
        for length in range(len(first.history)):
            prefix = first.history[:length]
            assert live(node, recorded=prefix).states == first.states[: length + 1], f"body {seed}, prefix {length}"
        other = live(node, recorded=first.history[: len(first.history) // 2], order=random.Random(-seed))
        _kept = noise(rng)
        assert live(node, recorded=other.history) == other, f"body {seed}"


def digest(bodies: int) -> str:
    """A fingerprint of many lives, for processes to compare."""
    summary = hashlib.sha256()
    for seed in range(bodies):
        rng = random.Random(seed)
        summary.update(json.dumps(live(grow(rng, 3), order=rng)).encode())
    return summary.hexdigest()


def elsewhere(code: str, hash_seed: str) -> str:
    """What a new Python prints, whose addresses and hashes are others."""
    env = os.environ | {"PYTHONHASHSEED": hash_seed, "PYTHONPATH": f"{ROOT}{os.pathsep}{PACKAGE.parent}"}
    code = f"waste = [bytearray({hash_seed} * 37) for _ in range(1 + {hash_seed})]\n{code}"
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_other_processes_import_the_package_that_is_tested() -> None:
    assert elsewhere("import perdure; print(perdure.__file__)", "1") == f"{perdure.__file__}\n"


def test_random_bodies_are_deterministic_in_every_process() -> None:
    code = "from tests.engine.replay.test_loop import digest; print(digest(100))"
    assert elsewhere(code, "1") == elsewhere(code, "2") == f"{digest(100)}\n"


SETS = """
import asyncio
from tests.engine.replay.test_loop import Host

async def one(n):
    return n

async def body():
    tasks = [asyncio.create_task(one(n), name=str(n)) for n in range(50)]
    done, _ = await asyncio.wait(tasks[::7])
    futures = [asyncio.shield(task) for task in tasks]
    shielded, _ = await asyncio.wait(futures)
    completed = [await next for next in asyncio.as_completed([one(n) for n in range(50)])]
    names = [t.get_name() for t in done], [t.get_name() for t in set(tasks)]
    return names, [futures.index(f) for f in shielded], completed

print(Host().run(body()))
"""


def test_sets_of_tasks_and_futures_are_in_the_same_order_in_every_process() -> None:
    assert elsewhere(SETS, "1") == elsewhere(SETS, "2") == elsewhere(SETS, "3")


def test_task_hashes_depend_on_the_seed_of_the_run_only() -> None:
    async def body() -> None: ...

    def task_hash(seed: str) -> int:
        task = BodyLoop(Host(), seed=seed).spawn(body())
        task.get_coro().close()
        task._log_destroy_pending = False  # type: ignore[attr-defined]
        return hash(task)

    assert len({task_hash(f"run-{n}") for n in range(100)}) == 100
    assert task_hash("a") == task_hash("a")


def test_tasks_in_a_set_are_in_the_order_of_their_creation() -> None:
    """Whatever the order in which they were added, unless the set is large."""

    async def body() -> None: ...

    loop = BodyLoop(Host(), seed="run-1")
    tasks = [loop.spawn(body()) for _ in range(5)]
    for task in tasks:
        task.get_coro().close()
        task._log_destroy_pending = False  # type: ignore[attr-defined]
    added = set[object]()
    for task in reversed(tasks):
        added.add(task)
    assert list(added) == tasks


# as_completed


async def number(host: Host, n: int) -> str:
    return f"{n} {await host.step(str(n))}"


def test_as_completed_creates_its_tasks_in_the_order_of_the_list(host: Host) -> None:
    async def body() -> None:
        for one in asyncio.as_completed([number(host, n) for n in range(40)]):
            await one

    host.run(body())
    assert host.asked == [f"step {n + 1}.1 {n}" for n in range(40)]


def test_as_completed_accepts_tasks_duplicates_and_other_awaitables(host: Host) -> None:
    class Later:
        def __init__(self, n: int) -> None:
            self.n = n

        def __await__(self) -> Any:
            return number(host, self.n).__await__()

    async def body() -> list[str]:
        task, coroutine, later = asyncio.create_task(number(host, 0)), number(host, 1), Later(2)
        given = {"a": later, "b": coroutine, "c": task, "d": later, "e": Later(3)}
        return [await one for one in asyncio.as_completed(given.values())]

    assert sorted(result[0] for result in host.run(body())) == ["0", "1", "2", "3"]
    assert host.asked == ["step 1.1 0", "step 2.1 2", "step 3.1 1", "step 4.1 3"]


def test_as_completed_of_coroutines_without_order_is_refused(host: Host) -> None:
    coroutine = number(host, 0)

    async def body() -> None:
        for one in asyncio.as_completed({coroutine}):
            await one

    with pytest.raises(NotDurableError, match="needs a list"):
        host.run(body())
    coroutine.close()


def test_as_completed_of_tasks_needs_no_order(host: Host) -> None:
    async def body() -> list[str]:
        made = map(asyncio.ensure_future, (number(host, n) for n in range(3)))  # 3.11 takes no generator itself
        grouped = map(asyncio.gather, (number(host, n) for n in range(3, 5)))
        first = [await one for one in asyncio.as_completed(made)]
        return [*first, *await next(iter(asyncio.as_completed(grouped)))]

    assert [result[0] for result in host.run(body())] == ["0", "1", "2", "3"]


# Time


def test_time_moves_only_when_a_timer_fires(host: Host) -> None:
    async def body() -> list[float]:
        clock = asyncio.get_running_loop().time
        times = [clock()]
        await asyncio.sleep(5)
        times.append(clock())
        await host.step("slow")
        times.append(clock())
        await asyncio.gather(asyncio.sleep(3), asyncio.sleep(1))
        return [*times, clock()]

    assert host.run(body()) == [0.0, 5.0, 5.0, 8.0]
    assert [line for line in host.asked if line.startswith("timer")] == [
        "timer 1 5.000000",
        "timer 3.1 3.000000",
        "timer 4.1 1.000000",
    ]


def test_time_never_goes_back(host: Host) -> None:
    early, late = host.loop.call_later(1, print), host.loop.call_later(2, host.log.append, "late")
    early.cancel()
    host.loop.fire(late)
    assert host.loop.time() == 2.0
    host.loop.fire(late)
    host.loop.pump()
    assert host.log == ["late"]
    assert host.asked == ["timer 1 1.000000", "timer 2 2.000000", "drop 1"]


def test_late_timer_does_not_move_time_back(host: Host) -> None:
    early, late = host.loop.call_later(1, print), host.loop.call_at(2, print)
    host.loop.fire(late)
    host.loop.fire(early)
    assert host.loop.time() == 2.0
    assert (early.delay, late.delay, late.when()) == (1, 2.0, 2.0)


@pytest.mark.parametrize("delay", [0, 0.0, -1, -math.inf])
def test_delay_of_zero_creates_no_timer(host: Host, delay: float) -> None:
    later = host.loop.call_later(delay, host.log.append, "later")
    host.loop.call_soon(host.log.append, "soon")
    cancelled = host.loop.call_at(host.loop.time() + delay, host.log.append, "at")
    cancelled.cancel()
    host.loop.pump()
    assert host.log == ["later", "soon"]
    assert host.asked == []
    assert later.when() <= host.loop.time() == 0.0


def test_timeouts_of_zero_work_without_a_timer(host: Host) -> None:
    async def body() -> str:
        await asyncio.sleep(0)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0):
                await host.step("too late")
        try:
            return str(await asyncio.wait_for(host.step("too late as well"), 0))
        except TimeoutError:
            return "timed out"

    assert host.run(body()) == "timed out"
    assert not any(line.startswith("timer") for line in host.asked)


@pytest.mark.parametrize("delay", [math.inf, NEVER_SEC * 1.01])
def test_timer_too_far_in_the_future_never_fires_and_is_not_kept(host: Host, delay: float) -> None:
    never = host.loop.call_later(delay, host.log.append, "now")
    host.loop.fire(never)
    host.loop.pump()
    never.cancel()
    assert (host.asked, host.log, host.loop.time()) == ([], [], 0.0)


def test_timer_needs_a_number(host: Host) -> None:
    with pytest.raises(ValueError, match="must be a number"):
        host.loop.call_later(math.nan, print)


def test_fired_timer_is_not_dropped_when_cancelled(host: Host) -> None:
    timer = host.loop.call_later(1, host.log.append, "fired")
    host.loop.fire(timer)
    timer.cancel()
    host.loop.pump()
    assert host.log == []
    assert host.asked == ["timer 1 1.000000"]


def test_equal_timers_are_separate(host: Host) -> None:
    assert len({host.loop.call_later(1, print), host.loop.call_later(1, print)}) == 2


def test_error_of_the_timer_interface_reaches_the_body() -> None:
    def refuse(timer: Timer) -> None:
        raise StepFailed

    loop = BodyLoop(SimpleNamespace(start=refuse, drop=refuse, path_of=refuse, report=print))
    task = loop.spawn(asyncio.sleep(1))
    loop.pump()
    assert isinstance(task.exception(), StepFailed)


# The host


@pytest.fixture(scope="module")
def signal_pipe() -> None:
    """Let libuv open the pipe that it keeps for the signals of the process."""
    uvloop.new_event_loop().close()


def surroundings() -> tuple[object, ...]:
    return asyncio.get_running_loop(), asyncio.current_task(), sys.get_asyncgen_hooks(), gc.isenabled()


@pytest.mark.usefixtures("signal_pipe")
@pytest.mark.parametrize("make", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_body_does_not_affect_the_host_loop(make: Callable[[], asyncio.AbstractEventLoop]) -> None:
    seen: list[object] = []

    async def body() -> None:
        seen.extend([asyncio.get_running_loop(), asyncio.current_task(), gc.isenabled()])

    async def main(callback: bool) -> None:
        before, host = surroundings(), Host()
        if callback:
            asyncio.get_running_loop().call_soon(host.begin, body())
            await asyncio.sleep(0)
        else:
            host.begin(body())
        assert surroundings() == before
        assert seen[-3:] == [host.loop, host.task, False]

    with asyncio.Runner(loop_factory=make) as runner:
        runner.run(main(callback=True))
        runner.run(main(callback=False))
    assert asyncio._get_running_loop() is None


@contextlib.contextmanager
def signals() -> Iterator[None]:
    """SIGINT as Python has it at first, not as asyncio's runner does, and a SIGTERM that ends the program."""
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before[0])
        signal.signal(signal.SIGTERM, before[1])


@pytest.mark.parametrize(("number", "error"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)])
@pytest.mark.parametrize("in_task", [True, False])
async def test_interrupt_leaves_the_host_as_it_was(
    host: Host, number: int, error: type[BaseException], in_task: bool
) -> None:
    def interrupt() -> None:
        signal.raise_signal(number)

    async def body() -> None:
        interrupt()

    before = surroundings()
    if in_task:
        host.task = host.loop.spawn(body())
    else:
        host.loop.call_soon(interrupt)
    host.loop.call_soon(host.log.append, "next")
    with signals(), pytest.raises(error):
        host.loop.pump()
    assert surroundings() == before
    assert host.log == []
    host.loop.pump()
    assert host.log == ["next"]
    if host.task is not None:
        assert isinstance(host.task.exception(), error)


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("in_task", [True, False])
async def test_exit_that_the_body_raises_itself_stays_in_the_body(
    host: Host, error: type[BaseException], in_task: bool
) -> None:
    def leave() -> None:
        raise error

    async def body() -> None:
        leave()

    before = surroundings()
    if in_task:
        host.task = host.loop.spawn(body())
    else:
        host.loop.call_soon(leave)
    host.loop.call_soon(host.log.append, "next")
    with signals():
        host.loop.pump()
    assert surroundings() == before
    assert host.log == ["next"]
    if host.task is not None:
        assert isinstance(host.task.exception(), error)
        assert not host.reports
    else:
        assert isinstance(host.reports[0]["exception"], error)


def test_disabled_garbage_collector_stays_disabled(host: Host) -> None:
    gc.disable()
    try:
        host.loop.pump()
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_pump_from_inside_is_an_error(host: Host) -> None:
    async def body() -> None:
        host.loop.pump()

    with pytest.raises(AssertionError, match="from inside"):
        host.run(body())


def test_host_may_complete_futures_between_pumps(host: Host) -> None:
    future = host.loop.create_future()

    async def body() -> object:
        return await future

    host.begin(body())
    future.set_result(7)
    host.loop.call_soon(host.log.append, "called")
    assert not done(host)
    assert not host.loop.is_running()
    host.loop.pump()
    assert outcome(host) == "7"
    assert host.log == ["called"]


def test_context_variables_of_the_body_do_not_leak(host: Host) -> None:
    variable: ContextVar[str] = ContextVar("variable")
    variable.set("host")

    async def body() -> list[str]:
        seen = [variable.get()]
        variable.set("body")
        await host.step("pause")
        return [*seen, variable.get()]

    host.begin(body())
    assert variable.get() == "host"
    variable.set("host again")
    host.give(Record("1", 0))
    assert outcome(host) == "['host', 'body']"
    assert current_scope() is None


async def test_future_of_the_host_cannot_be_awaited(host: Host) -> None:
    foreign = asyncio.get_running_loop().create_future()

    async def body() -> object:
        return await foreign

    with pytest.raises(RuntimeError, match="attached to a different loop"):
        host.run(body())


# Generators


async def test_dropped_generator_is_closed_on_the_loop_of_the_body(host: Host) -> None:
    async def count() -> AsyncGenerator[int, None]:
        try:
            yield 1
            yield 2
        finally:
            host.log.append(f"closed {await host.step('close')} {asyncio.get_running_loop() is host.loop}")

    async def body() -> str:
        async for _ in count():
            break
        await host.step("on")
        return "done"

    assert host.run(body()) == "done"
    assert host.asked == ["step 2 on", "step 1.1 close"]
    host.give(Record("1.1", 8))
    assert host.log == ["closed 8 True"]
    await asyncio.sleep(0)


def test_generator_in_a_reference_cycle_is_reported(host: Host) -> None:
    async def forever(own: list[object]) -> AsyncGenerator[int, None]:
        try:
            while True:
                yield 1
        finally:
            host.log.append("closed at random")

    async def body() -> None:
        cycle: list[object] = []
        cycle.append(generator := forever(cycle))
        await anext(generator)
        del cycle, generator
        [[] for _ in range(100_000)]  # the collector would come by
        assert host.reports == []
        await host.step("on")

    host.begin(body())
    gc.collect()
    host.give(Record("1", 0))
    assert host.log == []
    assert ["aclosing" in report["message"] for report in host.reports] == [True]


# The rest of the loop


REFUSED = {
    "run_in_executor": "make it a plain function with @activity",
    "call_soon_threadsafe": "send the run an event",
    "create_connection": "move it into an activity",
    "create_server": "move it into an activity",
    "subprocess_exec": "move it into an activity",
    "sock_recv": "move it into an activity",
    "getaddrinfo": "move it into an activity",
    "add_reader": "move it into an activity",
    "add_signal_handler": "send it an event from outside",
    "run_forever": "await it instead",
    "run_until_complete": "await it instead",
    "stop": "await it instead",
    "set_task_factory": "the engine makes",
    "set_exception_handler": "on_failure",
}


@pytest.mark.parametrize(("name", "way"), REFUSED.items())
def test_loop_methods_that_cannot_be_replayed_are_refused_and_name_the_alternative(
    host: Host, name: str, way: str
) -> None:
    with pytest.raises(NotDurableError, match=rf"loop\.{name}\(\).*{way}"):
        getattr(host.loop, name)(None)


def test_every_method_of_the_asyncio_loop_is_implemented_or_refused(host: Host) -> None:
    public = [name for name in vars(asyncio.AbstractEventLoop) if not name.startswith("_")]
    abstract = [name for name in public if getattr(BodyLoop, name) is getattr(asyncio.AbstractEventLoop, name)]
    assert len(public) > 50
    assert abstract == []


def test_refused_call_raises_in_the_body(host: Host) -> None:
    async def body() -> str:
        try:
            await asyncio.to_thread(print)
        except NotDurableError:
            with contextlib.suppress(NotDurableError):
                await asyncio.open_connection("localhost", 1)
            return "caught"
        return "ran"

    assert host.run(body()) == "caught"


def test_task_names_do_not_depend_on_the_process(host: Host) -> None:
    async def name() -> str:
        task = asyncio.current_task()
        assert task is not None
        return task.get_name()

    async def body() -> list[str]:
        async with asyncio.TaskGroup() as group:
            grouped = group.create_task(name(), name="mine"), group.create_task(name())
        return [await name(), await asyncio.create_task(name()), *[task.result() for task in grouped]]

    assert host.run(body()) == ["body", "Task-3", "mine", "Task-2"]


def test_tasks_are_kept_until_they_end(host: Host) -> None:
    async def stray() -> None:
        await asyncio.get_running_loop().create_future()

    async def body() -> None:
        asyncio.create_task(stray(), name="stray")  # noqa: RUF006 (that nothing else keeps it is the point)
        ended = asyncio.create_task(host.step("one"), name="ended")
        await ended

    host.run(body())
    gc.collect()
    (left,) = host.loop.tasks()
    assert left.get_name() == "stray"
    assert host.reports == []
    left.cancel()
    host.loop.pump()
    assert not host.loop.tasks()


if sys.version_info >= (3, 12):  # tasks can start eagerly since then

    def test_eager_task_has_its_scope_from_the_start(host: Host) -> None:
        async def body() -> int:
            await asyncio.get_running_loop().create_task(asyncio.sleep(0), eager_start=True)  # type: ignore[call-arg]
            task = asyncio.get_running_loop().create_task(host.step("eager"), eager_start=True)  # type: ignore[call-arg]
            host.log.append(host.asked[-1])
            return await task

        host.run(body())
        assert host.log == ["step 2.1 eager"]


def test_unretrieved_errors_are_reported(host: Host) -> None:
    async def fails() -> None:
        raise StepFailed

    async def body() -> None:
        task = asyncio.create_task(fails())
        await asyncio.wait([task])

    host.run(body())
    host.loop.call_soon(lambda: 1 / 0)
    host.loop.pump()
    assert [type(report["exception"]) for report in host.reports] == [StepFailed, ZeroDivisionError]


def test_closed_loop_refuses_calls(host: Host) -> None:
    host.loop.call_soon(host.log.append, "never")
    host.loop.close()
    assert host.loop.is_closed()
    for act in (host.loop.pump, lambda: host.loop.call_soon(print), lambda: host.loop.call_later(1, print)):
        with pytest.raises(RuntimeError, match="closed"):
            act()
    assert host.log == []


def test_closing_the_loop_cleans_up_without_warnings() -> None:
    async def body(host: Host) -> None:
        try:
            await asyncio.sleep(3)
        finally:
            host.log.append("collected")

    def leave() -> tuple[list[str], list[str], list[Mapping[str, Any]]]:
        host = Host()
        host.begin(body(host))
        host.loop.close()
        return host.log, host.asked, host.reports

    log, asked, reports = leave()
    gc.collect()
    assert log == ["collected"]
    assert asked == ["timer 1 3.000000"]  # and no drop: the timer is the next driver's
    assert reports == []


def test_debug_mode_works(host: Host) -> None:
    host.loop.set_debug(True)
    assert host.run(number(host, 1)) == "1 1"
    assert host.loop.get_debug()
