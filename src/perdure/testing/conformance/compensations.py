"""Test how a backend handles compensations."""

from datetime import UTC, datetime, timedelta

import pytest

from perdure.errors import InstanceNotFoundError, LeaseLostError, LimitError
from perdure.model.records import CompensationEntry
from perdure.storage.contract import Storage
from perdure.testing.conformance.tools import Shift, leased, new


async def names(storage: Storage, instance_id: str) -> list[str]:
    return [entry.activity_name for entry in await storage.get_compensations(instance_id)]


async def test_compensation_is_read_back_as_added(storage: Storage) -> None:
    await new(storage, "i-1")
    entry_id = await storage.add_compensation(CompensationEntry("i-1", "pay:1", "refund", b'{"n":  1, "\xc3\xa9": 2}'))
    (entry,) = await storage.get_compensations("i-1")
    assert (entry.id, entry.instance_id, entry.activity_id) == (entry_id, "i-1", "pay:1")
    assert (entry.activity_name, entry.args) == ("refund", b'{"n":  1, "\xc3\xa9": 2}')
    assert entry.created_at is not None
    assert abs(datetime.now(UTC) - entry.created_at) < timedelta(minutes=1)
    assert await storage.get_compensations("nobody") == []


async def test_compensations_are_returned_last_added_first_whatever_their_times(storage: Storage) -> None:
    await new(storage, "i-1")
    start = datetime(2030, 1, 1, tzinfo=UTC)
    for n in range(5):
        at = start - timedelta(hours=n)
        await storage.add_compensation(CompensationEntry("i-1", f"s:{n}", f"undo {n}", created_at=at))
    assert await names(storage, "i-1") == ["undo 4", "undo 3", "undo 2", "undo 1", "undo 0"]
    two = await storage.get_compensations("i-1", limit=2)
    assert [entry.activity_name for entry in two] == ["undo 4", "undo 3"]


async def test_step_may_have_several_compensations(storage: Storage) -> None:
    await new(storage, "i-1")
    entry = CompensationEntry("i-1", "s:1", "undo")
    first, second = await storage.add_compensation(entry), await storage.add_compensation(entry)
    assert [entry.id for entry in await storage.get_compensations("i-1")] == [second, first]


@pytest.mark.pitfall(1)
async def test_lost_lease_cannot_add_a_compensation(storage: Storage, shift: Shift) -> None:
    lease = await leased(storage, "i-1", timeout_sec=10)
    await storage.add_compensation(CompensationEntry("i-1", "s:1", "undo 1"), lease=lease)
    shift(storage, 11)
    taken = await storage.try_acquire_lock("i-1", "w2", 10)
    assert taken is not None
    with pytest.raises(LeaseLostError):
        await storage.add_compensation(CompensationEntry("i-1", "s:2", "undo 2"), lease=lease)
    await storage.add_compensation(CompensationEntry("i-1", "s:3", "undo 3"), lease=taken)
    assert await names(storage, "i-1") == ["undo 3", "undo 1"]


async def test_unknown_instance_is_refused_and_the_transaction_stays_usable(storage: Storage) -> None:
    await new(storage, "i-1")
    async with storage.transaction():
        with pytest.raises(InstanceNotFoundError):
            await storage.add_compensation(CompensationEntry("nobody", "s:1", "undo"))
        await storage.add_compensation(CompensationEntry("i-1", "s:1", "undo"))
    assert await names(storage, "i-1") == ["undo"]


@pytest.mark.parametrize("entry", [
    CompensationEntry("i-1", "s" * 256, "undo"),
    CompensationEntry("i-1", "s:1", " undo"),
    CompensationEntry("i-1", "s:1", "undo", b"\xff"),
    CompensationEntry("i-1", "s:1", "undo", b"1" * (8 * 1024 * 1024 + 1)),
])  # fmt: skip
async def test_compensation_beyond_a_limit_is_refused(storage: Storage, entry: CompensationEntry) -> None:
    await new(storage, "i-1")
    with pytest.raises(LimitError):
        await storage.add_compensation(entry)
    assert await storage.get_compensations("i-1") == []
