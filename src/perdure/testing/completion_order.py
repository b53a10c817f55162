"""The order in which concurrent activities complete: shuffled by a seed, so that a test can try many orders.

Activities execute as usual. When all that execute at the moment have ended, their outcomes are passed on one at a time,
in a random order, and each only after everything that follows from the one before has happened.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from perdure.engine.execution.interfaces import Attempt
from perdure.testing.observed import Observations

TURNS = 10  # of the event loop in which nothing must happen before the next activity completes
MOMENT_SEC = 0.0005
GRACE_SEC = 0.2  # real time after which activities complete although others still execute: these may wait for them

RUNS = 50  # default number of orders

_ORDER: "ContextVar[CompletionOrder | None]" = ContextVar("perdure_completion_order", default=None)


class CompletionOrder:
    """One order, which a seed determines."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._random = random.Random(seed)  # nosec B311 # an order of tests

    def turn(self, observations: Observations) -> Callable[[Attempt], Awaitable[None]]:
        """Return a function that waits until it is an attempt's turn to complete."""
        return _Turns(self._random, observations).wait


class _Turns:
    def __init__(self, chance: random.Random, observations: Observations) -> None:
        self._random = chance
        self._observations = observations
        self._parked: dict[str, asyncio.Future[None]] = {}  # by the idempotency key of the step, which is stable
        self._task: asyncio.Task[None] | None = None

    async def wait(self, attempt: Attempt) -> None:
        """Wait until it is this attempt's turn."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        key = f"{attempt.info.idempotency_key}#{attempt.info.attempt}"
        self._parked[key] = turn
        if self._task is None:
            self._task = asyncio.create_task(self._grant())
        try:
            await turn
        finally:
            if self._parked.get(key) is turn:
                del self._parked[key]

    async def _grant(self) -> None:
        while self._parked:
            await self._settle()
            if waiting := sorted(self._parked):
                chosen = self._parked.pop(self._random.choice(waiting))
                if not chosen.done():
                    chosen.set_result(None)
        self._task = None

    async def _settle(self) -> None:
        """Wait until nothing happens, but not for ever on code that executes."""
        calm, events, since, seen = 0, -1, time.monotonic(), self._observations
        while True:
            is_executing = seen.is_executing and time.monotonic() - since < GRACE_SEC
            if seen.operations or events != seen.events or is_executing:
                calm, events = 0, seen.events
                await asyncio.sleep(MOMENT_SEC if seen.operations or is_executing else 0)
            elif calm > TURNS:
                return
            else:
                calm += 1
                await asyncio.sleep(0)


def current_order() -> CompletionOrder | None:
    """Return the order that a test App which is created now follows, or None."""
    return _ORDER.get()


@contextmanager
def completing_in(order: CompletionOrder) -> Iterator[None]:
    """Let the activities of test Apps that the block creates complete in an order."""
    token = _ORDER.set(order)
    try:
        yield
    finally:
        _ORDER.reset(token)


async def any_order(scenario: Callable[[], Awaitable[object]], *, runs: int = RUNS, seed: int = 0) -> None:
    """Call a scenario many times, and let concurrent activities complete in a different order each time.

    - `scenario`: an async function without parameters that opens a `TestApp`, and asserts what must hold.
    - `runs`: the number of orders (default: 50).
    - `seed`: the seed of the first order; the next order has the next seed (default: 0).

    An error gets a note with the call that repeats its order.
    """
    for each in range(seed, seed + runs):
        with completing_in(CompletionOrder(each)):
            try:
                await scenario()
            except BaseException as error:
                error.add_note(f"repeat this order of completions with any_order(…, runs=1, seed={each})")
                raise
