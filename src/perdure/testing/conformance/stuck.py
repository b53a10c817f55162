"""Test how a backend records instances whose attempts end without progress."""

from datetime import datetime, timedelta

import pytest

from perdure.errors import LeaseLostError, LimitError
from perdure.model.records import HistoryEvent, Lease
from perdure.storage.contract import Storage
from perdure.testing.conformance.tools import Shift, leased, new


async def again(storage: Storage, instance_id: str, seconds: float, shift: Shift) -> Lease:
    """Return the lease of the next attempt, so many seconds later."""
    shift(storage, seconds)
    lease = await storage.try_acquire_lock(instance_id, "w1", 30)
    assert lease is not None
    return lease


async def stuck(storage: Storage) -> list[str]:
    return [each.instance_id for each in await storage.list_stuck()]


async def test_backed_off_instance_is_not_leased_before_its_time(storage: Storage, shift: Shift) -> None:
    lease = await leased(storage, "i-1")
    before = await storage.get_instance("i-1")
    await storage.back_off(lease, 3, "ValueError: bad\nline", 60)
    row = await storage.get_instance("i-1")
    assert row is not None
    assert before is not None
    assert (row.locked_by, row.lock_token, row.updated_at) == ("~put-off#3", lease.token + 1, before.updated_at)
    assert await storage.find_resumable_workflows() == []
    assert await storage.try_acquire_lock("i-1", "w2", 30) is None
    (found,) = await storage.list_stuck()
    assert (found.instance_id, found.reason, found.tries) == ("i-1", "ValueError: bad\nline", 3)
    assert found.since == row.locked_at
    assert found.next_retry_at == row.lock_expires_at
    assert await storage.get_stuck(["absent", "i-1"]) == [None, found]
    await again(storage, "i-1", 61, shift)
    assert await storage.get_stuck(["i-1"]) == [found]  # taken, but without progress yet


async def test_only_the_holder_of_the_lease_backs_off(storage: Storage) -> None:
    lease = await leased(storage, "i-1")
    await storage.release_lock("i-1", "w1", lease=lease)
    with pytest.raises(LeaseLostError):
        await storage.back_off(lease, 1, "late", 1)
    assert await storage.list_stuck() == []


async def test_progress_ends_being_stuck(storage: Storage, shift: Shift) -> None:
    for instance_id in ("i-1", "i-2", "i-3", "i-4"):
        await storage.back_off(await leased(storage, instance_id), 1, "no", 1)
    lease = await again(storage, "i-1", 2, shift)
    await storage.append_history(HistoryEvent("i-1", "a", "ActivityCompleted", b"1"), lease=lease)
    await storage.complete_and_release(await again(storage, "i-2", 2, shift), b"1")
    await storage.cancel_instance("i-3", compensate=True)
    assert await stuck(storage) == ["i-4"]
    assert [each and each.instance_id for each in await storage.get_stuck(["i-1", "i-4"])] == [None, "i-4"]
    await storage.clear_stuck(["i-1", "i-2", "i-3", "i-4", "absent"])
    await storage.clear_stuck([])
    assert await stuck(storage) == []


async def test_stuck_since_is_the_time_of_the_first_failed_try(storage: Storage, shift: Shift) -> None:
    await storage.back_off(await leased(storage, "i-1"), 1, "no", 1)
    (first,) = await storage.list_stuck()
    await storage.back_off(await again(storage, "i-1", 10, shift), 2, "still no", 1)
    (second,) = await storage.list_stuck()
    assert (second.since, second.tries, second.reason) == (first.since, 2, "still no")
    assert second.next_retry_at > first.next_retry_at
    await storage.back_off(await again(storage, "i-1", 15, shift), 2, "handed over", 1)
    (handed_over,) = await storage.list_stuck()
    assert (handed_over.since, handed_over.tries) == (first.since, 2)
    await storage.back_off(await again(storage, "i-1", 20, shift), 1, "new", 1)  # it had made progress
    (third,) = await storage.list_stuck()
    assert third.since > first.since


async def test_stuck_instances_are_listed_longest_first_in_pages(storage: Storage, shift: Shift) -> None:
    for n, instance_id in enumerate(("c", "a", "b", "é", "Z")):
        shift(storage, n)
        await storage.back_off(await leased(storage, instance_id), 1, "no", 60)
    found: list[tuple[datetime, str]] = []
    while page := await storage.list_stuck(2, after=found[-1] if found else None):
        found += [(each.since, each.instance_id) for each in page]
    assert [instance_id for _, instance_id in found] == ["c", "a", "b", "é", "Z"]


async def test_a_deleted_instance_is_not_stuck(storage: Storage) -> None:
    await storage.back_off(await leased(storage, "i-1"), 1, "no", 60)
    await storage.cancel_instance("i-1")
    assert await storage.delete_ended(["i-1"]) == [True]
    assert await storage.list_stuck() == []
    await new(storage, "i-1")
    assert await storage.get_stuck(["i-1"]) == [None]


async def test_back_off_and_lists_of_stuck_instances_have_limits(storage: Storage) -> None:
    lease = await leased(storage, "i-1")
    with pytest.raises(LimitError):
        await storage.back_off(lease, 1, "r" * (64 * 1024 + 1), 1)
    with pytest.raises(LimitError):
        await storage.back_off(lease, 1, "no", 0)
    with pytest.raises(LimitError):
        await storage.back_off(lease, -1, "no", 1)
    with pytest.raises(LimitError):
        await storage.list_stuck(1001)
    with pytest.raises(LimitError):
        await storage.get_stuck(["i"] * 1001)
    assert await storage.list_stuck(after=(lease.expires_at + timedelta(days=1), "")) == []
