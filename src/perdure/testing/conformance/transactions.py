"""Test how a backend handles begin, commit, rollback, levels, tasks and cancellation."""

import asyncio
import logging

import pytest

from perdure.errors import (
    HistoryConflictError,
    InstanceExistsError,
    InstanceNotFoundError,
    LeaseLostError,
    TransactionError,
)
from perdure.model.records import HistoryEvent, Lease
from perdure.storage.contract import Storage
from perdure.testing.conformance.tools import leased, new


def event(n: int) -> HistoryEvent:
    return HistoryEvent("i-1", f"s:{n}", "ActivityCompleted", b"1")


async def test_transaction_block_commits(storage: Storage) -> None:
    assert not storage.in_transaction()
    async with storage.transaction():
        assert storage.in_transaction()
        await new(storage, "i-1")
        assert await storage.get_instance("i-1") is not None
    assert not storage.in_transaction()
    assert await storage.get_instance("i-1") is not None


async def test_transaction_block_that_raises_rolls_back(storage: Storage) -> None:
    with pytest.raises(ZeroDivisionError):
        async with storage.transaction():
            await new(storage, "i-1")
            1 / 0  # noqa: B018
    assert not storage.in_transaction()
    assert await storage.get_instance("i-1") is None


async def test_nothing_is_visible_before_the_commit(storage: Storage, peer: Storage) -> None:
    if peer is storage:
        return  # a database in memory has one storage
    async with storage.transaction():
        await new(storage, "i-1")
        assert await peer.get_instance("i-1") is None
    assert await peer.get_instance("i-1") is not None


async def test_transaction_can_be_begun_committed_and_rolled_back_by_calls(storage: Storage) -> None:
    await storage.begin_transaction()
    await new(storage, "i-1")
    await storage.rollback_transaction()
    await storage.begin_transaction()
    await new(storage, "i-2")
    await storage.commit_transaction()
    assert [await storage.get_instance(i) is not None for i in ("i-1", "i-2")] == [False, True]


async def test_commit_without_a_transaction_raises_and_rollback_is_harmless(storage: Storage) -> None:
    with pytest.raises(TransactionError):
        await storage.commit_transaction()
    await storage.rollback_transaction()


async def test_nested_transactions_are_savepoints(storage: Storage) -> None:
    async with storage.transaction():
        await new(storage, "outer")
        with pytest.raises(KeyError):
            async with storage.transaction():
                await new(storage, "undone")
                raise KeyError
        async with storage.transaction():
            await new(storage, "inner")
            async with storage.transaction():
                await new(storage, "innermost")
        assert storage.in_transaction()
    found = [await storage.get_instance(i) is not None for i in ("outer", "undone", "inner", "innermost")]
    assert found == [True, False, True, True]


async def test_outer_rollback_undoes_nested_transactions(storage: Storage) -> None:
    with pytest.raises(KeyError):
        async with storage.transaction():
            async with storage.transaction():
                await new(storage, "inner")
            raise KeyError
    assert await storage.get_instance("inner") is None


async def test_storage_errors_leave_the_transaction_usable(storage: Storage) -> None:
    lease = await leased(storage, "i-1")
    await storage.append_history(event(0), lease=lease)
    async with storage.transaction():
        await storage.append_history(event(1), lease=lease)
        with pytest.raises(InstanceExistsError):
            await new(storage, "i-1")
        with pytest.raises(HistoryConflictError):
            await storage.append_history(HistoryEvent("i-1", "s:0", "ActivityCompleted", b"2"), lease=lease)
        with pytest.raises(LeaseLostError):
            await storage.append_history(event(2), lease=Lease("i-1", "w9", 1, lease.expires_at))
        with pytest.raises(InstanceNotFoundError):
            await storage.update_instance_activity("nobody", "x")
        answers = await storage.append_histories([(event(3), lease), (HistoryEvent("x", "y", "Z", b"1"), None)])
        assert [type(answer).__name__ for answer in answers] == ["int", "InstanceNotFoundError"]
        await storage.append_history(event(4), lease=lease)
    events, _ = await storage.get_history_paginated("i-1")
    assert [found.activity_id for found in events] == ["s:0", "s:1", "s:3", "s:4"]


async def test_callbacks_run_once_in_order_after_the_outermost_commit(storage: Storage) -> None:
    seen: list[str] = []

    async def later() -> None:
        assert not storage.in_transaction()
        seen.append(f"second {await storage.get_instance('i-1') is not None}")

    async with storage.transaction():
        storage.register_post_commit_callback(lambda: seen.append("first"))
        async with storage.transaction():
            await new(storage, "i-1")
            storage.register_post_commit_callback(later)
        with pytest.raises(KeyError):
            async with storage.transaction():
                storage.register_post_commit_callback(lambda: seen.append("dropped"))
                raise KeyError
        assert seen == []
    assert seen == ["first", "second True"]


async def test_callbacks_of_a_rollback_are_dropped(storage: Storage) -> None:
    seen: list[int] = []
    await storage.begin_transaction()
    storage.register_post_commit_callback(lambda: seen.append(1))
    await storage.rollback_transaction()
    async with storage.transaction():
        pass
    assert seen == []


async def test_failing_callback_does_not_stop_other_callbacks(
    storage: Storage, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[int] = []

    def broken() -> None:
        raise ValueError("broken")

    with caplog.at_level(logging.ERROR):
        async with storage.transaction():
            storage.register_post_commit_callback(broken)
            storage.register_post_commit_callback(lambda: seen.append(1))
    assert seen == [1]
    assert "the transaction was committed" in caplog.text


async def test_a_callback_needs_a_transaction(storage: Storage) -> None:
    with pytest.raises(TransactionError):
        storage.register_post_commit_callback(lambda: None)


@pytest.mark.pitfall(40)
async def test_task_started_in_a_transaction_is_refused_unless_detached(storage: Storage) -> None:
    async def inside() -> None:
        with pytest.raises(TransactionError):
            await storage.get_instance("i-1")
        assert not storage.in_transaction()

    async def outside() -> bool:
        with storage.detached():
            return storage.in_transaction()

    async with storage.transaction():
        await asyncio.create_task(inside())
        assert await asyncio.create_task(outside()) is False
        assert storage.in_transaction()


@pytest.mark.pitfall(40)
async def test_task_that_outlives_the_transaction_can_use_the_storage(storage: Storage) -> None:
    ended = asyncio.Event()

    async def survivor() -> bool:
        await ended.wait()
        await new(storage, "i-1")
        return storage.in_transaction()

    async with storage.transaction():
        task = asyncio.create_task(survivor())
    ended.set()
    assert await task is False


@pytest.mark.pitfall(40)
async def test_transaction_of_one_storage_does_not_affect_another(storage: Storage, peer: Storage) -> None:
    if peer is storage:
        return  # a database in memory has one storage
    async with storage.transaction():
        assert not peer.in_transaction()
        await peer.get_instance("i-1")


async def test_concurrent_tasks_have_separate_transactions(storage: Storage) -> None:
    async def one(n: int) -> None:
        async with storage.transaction():
            await new(storage, f"i-{n}")
            await storage.get_instance(f"i-{n}")
            if n % 2:
                raise KeyError

    answers = await asyncio.gather(*(one(n) for n in range(12)), return_exceptions=True)
    assert sum(isinstance(answer, KeyError) for answer in answers) == 6
    assert len((await storage.list_instances()).instances) == 6


@pytest.mark.pitfall(39)
async def test_operations_need_no_second_connection(storage: Storage) -> None:
    """Twenty transactions, each with several operations, on a pool of ten: none waits for the second of another."""
    leases = [await leased(storage, f"i-{n}") for n in range(20)]

    async def one(lease: Lease) -> None:
        async with storage.transaction():
            await storage.append_history(HistoryEvent(lease.instance_id, "a", "ActivityCompleted", b"1"), lease=lease)
            await storage.refresh_lock(lease.instance_id, lease.worker_id, 30, lease=lease)
            await storage.append_history(HistoryEvent(lease.instance_id, "b", "ActivityCompleted", b"1"), lease=lease)

    await asyncio.wait_for(asyncio.gather(*(one(lease) for lease in leases)), 30)
    assert [await storage.get_history_count(lease.instance_id) for lease in leases] == [2] * 20


async def test_cancelled_transaction_block_rolls_back(storage: Storage) -> None:
    entered = asyncio.Event()

    async def block() -> None:
        async with storage.transaction():
            await new(storage, "i-1")
            entered.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(block())
    await entered.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await storage.get_instance("i-1") is None
    await new(storage, "i-1")


async def test_clock_advances_within_a_transaction(storage: Storage) -> None:
    """Otherwise a long transaction would evaluate leases and timers by a clock that stands still."""
    await new(storage, "i-1")
    async with storage.transaction():
        await storage.append_history(event(0))
        await asyncio.sleep(0.02)
        await storage.append_history(event(1))
    first, second = (await storage.get_history_paginated("i-1"))[0]
    assert first.created_at is not None
    assert second.created_at is not None
    assert first.created_at < second.created_at


async def test_transaction_cancelled_at_any_await_is_atomic(storage: Storage) -> None:
    """Cancel after 0, 1, 2, … iterations of the loop: all or nothing, and the storage keeps working."""
    lease = await leased(storage, "i-1")
    for turns in range(60):
        task = asyncio.create_task(_three_writes(storage, lease, turns))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        try:
            await task
        except asyncio.CancelledError:
            assert not storage.in_transaction()
            ending = [each for each in asyncio.all_tasks() if "commit" in str(each.get_coro())]
            assert not ending, "its end is still in progress"
        events, _ = await storage.get_history_paginated("i-1")
        written = [found.activity_id for found in events if found.activity_id.startswith(f"{turns}:")]
        assert len(written) in (0, 3)
    async with storage.transaction():
        await storage.append_history(event(0), lease=lease)


async def _three_writes(storage: Storage, lease: Lease, turn: int) -> None:
    async with storage.transaction():
        for n in range(3):
            await storage.append_history(HistoryEvent("i-1", f"{turn}:{n}", "ActivityCompleted", b"1"), lease=lease)


async def test_operation_cancelled_at_any_await_is_atomic(storage: Storage) -> None:
    await new(storage, "i-1")
    for turns in range(40):
        task = asyncio.create_task(storage.try_acquire_lock("i-1", "w", 30))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        found = await storage.get_instance("i-1")
        assert found is not None
        await storage.release_lock("i-1", "w")
