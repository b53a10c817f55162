"""The stored history of a run is always a prefix of what the run did."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta

import pytest

from perdure import App, activity, activity_info, workflow
from perdure.engine.execution.group_commit import GroupCommit
from perdure.engine.execution.journal import Journal, Journals, writing
from perdure.errors import CommitUnknownError, HistoryConflictError, LeaseLostError, StorageError
from perdure.model.records import HistoryEvent, HistoryEventType, Lease, WorkflowInstance
from perdure.model.states import WorkflowStatus
from perdure.storage.stores import SQLStorage
from tests.support.storages import Database, storage_of

SOON = timedelta(seconds=60)
gates_storage: list[SQLStorage] = []


async def steal(storage: SQLStorage, id: str, seconds: float = 60) -> Lease:
    """What happens to a worker that was stopped for too long."""
    row = await storage.get_instance(id)
    assert row is not None
    assert row.locked_by is not None
    await storage.release_lock(id, row.locked_by)
    lease = await storage.try_acquire_lock(id, "thief", seconds)
    assert lease is not None
    return lease


@activity
async def look_back() -> int:
    """How much of this run another connection sees."""
    storage: SQLStorage = gates_storage[0]
    return await storage.get_history_count(activity_info().workflow_id)


@workflow(name="journal.looking_back")
async def looking_back() -> list[int]:
    found = [await look_back()]
    found += await asyncio.gather(look_back(), look_back())
    found += [await look_back() for _ in range(3)]
    return found


@pytest.mark.guarantee(6)
async def test_activity_starts_after_all_earlier_steps_are_stored(database: Database) -> None:
    async with App(database.url) as app:
        gates_storage[:] = [storage_of(app) if database.backend == "memory" else await database.storage()]
        for run in [await looking_back.start() for _ in range(20)]:
            first, left, right, *rest = await run.result(SOON)
            assert first == 0
            assert {left, right} <= {1, 2}
            assert rest == [3, 4, 5]


async def _leased(storage: SQLStorage, id: str) -> Lease:
    lease = await storage.create_instance(WorkflowInstance(id, "wf"), worker_id="w", timeout_sec=60)
    assert lease is not None
    return lease


def _event(id: str, number: int) -> HistoryEvent:
    return HistoryEvent(id, f"{number}:step", HistoryEventType.ACTIVITY_COMPLETED, b"1")


async def _stored(storage: SQLStorage, id: str) -> list[str]:
    return [event.activity_id for event in (await storage.get_history_paginated(id))[0]]


async def _under_way() -> None:
    """Wait until a commit has begun, so that what follows is in the next one."""
    for _ in range(2):
        await asyncio.sleep(0)


@pytest.mark.guarantee(6)
async def test_rejected_write_drops_all_later_writes_of_its_run_only(storage: SQLStorage) -> None:
    journals: Journals = GroupCommit(writing(storage))
    lost, kept = [Journal(journals, await _leased(storage, id), 0) for id in ("lost", "kept")]
    stored: list[str] = []
    lost.record(_event("lost", 1), lambda: stored.append("lost 1"))
    await lost.durable()
    lease = await steal(storage, "lost")
    for number in range(2, 6):
        lost.record(_event("lost", number), lambda: stored.append("never"))
        kept.record(_event("kept", number), lambda: stored.append("kept"))
    await kept.durable()
    with pytest.raises(LeaseLostError):
        await lost.durable()
    await storage.release_lock("lost", "thief", lease=lease)
    lost.record(_event("lost", 6), lambda: stored.append("never"))
    with pytest.raises(LeaseLostError):
        await lost.durable()
    assert await _stored(storage, "lost") == ["1:step"]
    assert await _stored(storage, "kept") == [f"{number}:step" for number in range(2, 6)]
    assert stored == ["lost 1", *["kept"] * 4]


@pytest.mark.guarantee(6)
async def test_later_writes_wait_until_the_outcome_of_an_unknown_commit_is_known(storage: SQLStorage) -> None:
    sent: list[list[str]] = []
    plain = storage.append_histories

    async def losing(items: Sequence[tuple[HistoryEvent, Lease | None]]) -> list[int | StorageError]:
        sent.append([event.activity_id for event, _ in items])
        answer = await plain(items)
        if len(sent) < 3:
            raise CommitUnknownError("the answer was lost")
        return answer

    storage.append_histories = losing  # type: ignore[method-assign]
    journal = Journal(GroupCommit(writing(storage)), await _leased(storage, "a"), 0)
    journal.record(_event("a", 1), lambda: None)
    await _under_way()
    journal.record(_event("a", 2), lambda: None)
    await journal.durable()
    assert sent == [["1:step"], ["1:step"], ["1:step"], ["2:step"]]
    assert await _stored(storage, "a") == ["1:step", "2:step"]


@pytest.mark.guarantee(6)
async def test_write_that_fails_unexpectedly_is_never_taken_for_stored(storage: SQLStorage) -> None:
    plain, calls = storage.append_histories, list[int]()

    async def failing(items: Sequence[tuple[HistoryEvent, Lease | None]]) -> list[int | StorageError]:
        calls.append(len(items))
        if len(calls) == 1:
            raise ValueError("a bug")
        return await plain(items)

    storage.append_histories = failing  # type: ignore[method-assign]
    journal = Journal(GroupCommit(writing(storage)), await _leased(storage, "a"), 0)
    journal.record(_event("a", 1))
    await _under_way()
    journal.record(_event("a", 2))
    with pytest.raises(StorageError, match="a group commit failed: ValueError: a bug"):
        await journal.durable()
    assert not journal.progressed
    assert await _stored(storage, "a") == []


def _gated(storage: SQLStorage) -> asyncio.Event:
    """Let commits wait for an event."""
    gate, plain = asyncio.Event(), storage.append_histories

    async def append(items: Sequence[tuple[HistoryEvent, Lease | None]]) -> list[int | StorageError]:
        await gate.wait()
        return await plain(items)

    storage.append_histories = append  # type: ignore[method-assign]
    return gate


async def test_later_records_do_not_delay_what_waits_for_earlier_ones(storage: SQLStorage) -> None:
    gate = _gated(storage)
    journal = Journal(GroupCommit(writing(storage)), await _leased(storage, "a"), 0)
    order: list[str] = []
    journal.record(_event("a", 1))
    journal.when_durable(lambda: order.append("first"))
    await _under_way()
    journal.record(_event("a", 2))
    journal.when_durable(lambda: order.append("second"))
    journal.when_durable(lambda: order.append("third"))
    assert order == []
    gate.set()
    await journal.durable()
    assert order == ["first", "second", "third"]
    journal.when_durable(lambda: order.append("at once"))
    assert order[-1] == "at once"


async def test_cancelled_wait_for_a_commit_disturbs_nothing(storage: SQLStorage) -> None:
    gate = _gated(storage)
    journal = Journal(GroupCommit(writing(storage)), await _leased(storage, "a"), 0)
    journal.record(_event("a", 1))
    waiting = [asyncio.create_task(journal.durable()) for _ in range(2)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    gate.set()
    await waiting[1]
    assert waiting[0].cancelled()
    assert await _stored(storage, "a") == ["1:step"]


# The completion of a run.


def _counted(storage: SQLStorage) -> list[tuple[list[str], list[str]]]:
    """Return the commits from now on: the steps that they record, and the runs that they complete."""
    commits: list[tuple[list[str], list[str]]] = []
    append, complete = storage.append_histories, storage.append_and_complete

    async def appended(items: Sequence[tuple[HistoryEvent, Lease | None]]) -> list[int | StorageError]:
        commits.append(([event.activity_id for event, _ in items], []))
        return await append(items)

    async def completed(
        events: Sequence[tuple[HistoryEvent, Lease | None]], completions: Sequence[tuple[Lease, bytes]]
    ) -> list[int | StorageError | None]:
        commits.append(([event.activity_id for event, _ in events], [lease.instance_id for lease, _ in completions]))
        return await complete(events, completions)

    storage.append_histories = appended  # type: ignore[method-assign]
    storage.append_and_complete = completed  # type: ignore[method-assign]
    return commits


async def _status(storage: SQLStorage, id: str) -> WorkflowStatus | None:
    row = await storage.get_instance(id)
    return None if row is None else row.status


@activity
async def pass_on(number: int) -> int:
    return number


@workflow(name="journal.two_steps")
async def two_steps() -> int:
    return await pass_on(1) + await pass_on(2)


async def test_last_step_and_the_end_of_the_run_share_a_commit(database: Database) -> None:
    async with App(database.url) as app:
        commits = _counted(storage_of(app))
        run = await two_steps.start()
        assert await run.result(SOON) == 3
        assert commits == [(["1:pass_on"], []), (["2:pass_on"], [run.id])]


@pytest.mark.guarantee(6)
async def test_refused_record_refuses_the_completion_of_its_run_only(storage: SQLStorage) -> None:
    journals: Journals = GroupCommit(writing(storage))
    leases = [await _leased(storage, id) for id in ("a", "b")]
    await storage.append_history(HistoryEvent("a", "1:step", HistoryEventType.ACTIVITY_FAILED, b"1"), lease=leases[0])
    runs = [Journal(journals, lease, 0) for lease in leases]
    for run in runs:
        run.record(_event(run.lease.instance_id, 1))
    refused, done = await asyncio.gather(*(run.complete(b"1") for run in runs), return_exceptions=True)
    assert isinstance(refused, HistoryConflictError)
    assert done is None
    assert [await _status(storage, id) for id in ("a", "b")] == [WorkflowStatus.RUNNING, WorkflowStatus.COMPLETED]
    with pytest.raises(HistoryConflictError):
        await runs[0].complete(b"1")
    assert await _status(storage, "a") is WorkflowStatus.RUNNING


@pytest.mark.guarantee(6)
async def test_completion_behind_a_record_that_is_refused_is_never_sent(storage: SQLStorage) -> None:
    lease = await _leased(storage, "a")
    journal = Journal(GroupCommit(writing(storage)), lease, 0)
    await steal(storage, "a")
    journal.record(_event("a", 1))
    await _under_way()
    commits = _counted(storage)
    with pytest.raises(LeaseLostError):
        await journal.complete(b"1")
    assert commits == []
    assert await _status(storage, "a") is WorkflowStatus.RUNNING


@pytest.mark.guarantee(6)
@pytest.mark.parametrize("stored", [True, False])
async def test_completion_with_an_unknown_outcome_is_read_back(storage: SQLStorage, stored: bool) -> None:
    leases = [await _leased(storage, id) for id in ("a", "b")]
    plain, sent, told = storage.append_and_complete, list[int](), list[str]()

    async def losing(
        events: Sequence[tuple[HistoryEvent, Lease | None]], completions: Sequence[tuple[Lease, bytes]]
    ) -> list[int | StorageError | None]:
        sent.append(len(completions))
        if len(sent) > 1 or stored:
            answers = await plain(events, completions)
        if len(sent) == 1:
            raise CommitUnknownError("the answer was lost")
        return answers

    storage.append_and_complete = losing  # type: ignore[method-assign]
    journals: Journals = GroupCommit(writing(storage))
    ending, going = [Journal(journals, lease, 0) for lease in leases]
    ending.record(_event("a", 1), lambda: told.append("a"))
    going.record(_event("b", 1), lambda: told.append("b"))
    await ending.complete(b"1")
    await going.durable()
    assert sent == ([1] if stored else [1, 1])
    assert sorted(told) == ["a", "b"]
    assert [await _status(storage, id) for id in ("a", "b")] == [WorkflowStatus.COMPLETED, WorkflowStatus.RUNNING]
    assert [await _stored(storage, id) for id in ("a", "b")] == [["1:step"], ["1:step"]]
