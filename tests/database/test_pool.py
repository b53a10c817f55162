"""The connection pool: its limit, its queue, and no lost connection when a waiter is cancelled."""

import asyncio
import gc
import weakref

import pytest

from perdure.database.backends.pool import Pool
from perdure.errors import DatabaseUnavailableError


class Connection:
    """Alive until the test changes that."""

    alive = True


class Source:
    """Makes connections; counts those that were thrown away."""

    def __init__(self, limit: int, wait_sec: float = 30.0) -> None:
        self.discarded: list[Connection] = []
        self.failure: Exception | None = None  # of the next attempt
        self.reachable = asyncio.Event()
        self.reachable.set()
        self.pool: Pool[Connection] = Pool(self.connect, lambda c: c.alive, self.discarded.append, limit, wait_sec)

    async def connect(self) -> Connection:
        await self.reachable.wait()
        failure, self.failure = self.failure, None
        if failure is not None:
            raise failure
        return Connection()


async def waiting(source: Source) -> "asyncio.Task[Connection]":
    """A task that stands in the queue."""
    before = len(source.pool._waiters)
    task = asyncio.create_task(source.pool.acquire())
    await asyncio.sleep(0)  # its first step
    assert len(source.pool._waiters) == before + 1
    return task


async def test_last_used_connection_is_reused_first_and_waiters_are_served_in_order() -> None:
    source = Source(2)
    a, b = await source.pool.acquire(), await source.pool.acquire()
    first, second = await waiting(source), await waiting(source)
    source.pool.release(a)
    assert await first is a
    source.pool.release(b)
    assert await second is b
    source.pool.release(a)
    source.pool.release(b)
    assert source.pool.take() is b


async def test_dead_connection_is_replaced_for_a_waiter() -> None:
    source = Source(1)
    dead = await source.pool.acquire()
    waiter = await waiting(source)
    dead.alive = False
    source.pool.release(dead)
    fresh = await waiter
    assert source.discarded == [dead]
    source.pool.release(fresh)
    fresh.alive = False
    assert source.pool.take() is None
    assert await source.pool.acquire() not in (dead, fresh)


@pytest.mark.parametrize("dead", [False, True])
async def test_connection_given_to_a_cancelled_waiter_goes_to_the_next(dead: bool) -> None:
    source = Source(1)
    held = await source.pool.acquire()
    cancelled, next_one = await waiting(source), await waiting(source)
    held.alive = not dead
    source.pool.release(held)
    cancelled.cancel()  # it has been served, and does not know it yet
    got = await asyncio.wait_for(next_one, 5)
    assert (got is held) is not dead
    assert cancelled.cancelled()


async def test_waiter_that_is_cancelled_when_its_time_is_up_is_cancelled() -> None:
    source = Source(1)
    await source.pool.acquire()
    waiter = await waiting(source)
    source.pool._waiters[0][1].set_exception(DatabaseUnavailableError("no connection became free"))
    waiter.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiter


async def test_failed_connect_lets_the_next_waiter_connect() -> None:
    source = Source(1)
    source.failure = DatabaseUnavailableError("away")
    source.reachable.clear()
    failing = asyncio.create_task(source.pool.acquire())
    await asyncio.sleep(0)
    waiter = await waiting(source)
    source.reachable.set()
    with pytest.raises(DatabaseUnavailableError, match="away"):
        await failing
    assert isinstance(await waiter, Connection)


async def test_waiting_for_a_connection_times_out() -> None:
    source = Source(1, wait_sec=0.02)
    held = await source.pool.acquire()
    for _ in range(2):
        with pytest.raises(DatabaseUnavailableError, match="all 1 are in use"):
            await source.pool.acquire()
    waiter = await waiting(source)
    source.pool.release(held)
    assert await waiter is held


async def test_closing_the_pool_fails_waiters_and_closes_returned_connections() -> None:
    source = Source(1)
    held = await source.pool.acquire()
    waiter = await waiting(source)
    source.pool.close()
    with pytest.raises(DatabaseUnavailableError, match="not open"):
        await waiter
    source.pool.release(held)
    assert source.discarded == [held]


async def test_closed_pool_is_not_kept_by_the_time_limit_of_its_waiters() -> None:
    """A program that opens and closes storages would keep each one for as long as a caller may wait."""
    source = Source(1, wait_sec=3600)
    await source.pool.acquire()
    waiter = await waiting(source)
    source.pool.close()
    await asyncio.wait([waiter])
    assert isinstance(waiter.exception(), DatabaseUnavailableError)
    closed = weakref.ref(source.pool)
    del source, waiter  # the error of the waiter refers to the pool
    gc.collect()
    assert closed() is None
