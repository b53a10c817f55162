"""A stale worker waits for an uncommitted takeover, and then writes nothing."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from perdure.errors import LeaseLostError
from perdure.model.records import CompensationEntry, Lease, OutboxEvent
from perdure.storage.stores import SQLStorage
from perdure.testing.conformance.tools import leased
from tests.support.blocking import blocked
from tests.support.storages import shift

WRITES: dict[str, Callable[[SQLStorage, Lease], Awaitable[object]]] = {
    "archive_history": lambda s, lease: s.archive_history("i-1", lease=lease),
    "cleanup_instance_subscriptions": lambda s, lease: s.cleanup_instance_subscriptions("i-1", lease=lease),
    "recur_instance": lambda s, lease: s.recur_instance("i-1", b"2", lease=lease),
    "add_compensation": lambda s, lease: s.add_compensation(CompensationEntry("i-1", "s:1", "undo"), lease=lease),
    "join_group": lambda s, lease: s.join_group("i-1", "g", lease=lease),
    "leave_group": lambda s, lease: s.leave_group("i-1", "g", lease=lease),
    "leave_all_groups": lambda s, lease: s.leave_all_groups("i-1", lease=lease),
    "add_outbox_event": lambda s, lease: s.add_outbox_event(OutboxEvent("e-1", "paid", "shop"), lease=lease),
}


@pytest.mark.pitfall(1)
@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES.keys())
async def test_stale_worker_cannot_write_during_an_uncommitted_takeover(
    storage: SQLStorage, peer: SQLStorage, write: Callable[[SQLStorage, Lease], Awaitable[object]]
) -> None:
    lease = await leased(storage, "i-1", timeout_sec=10)
    for side in (storage, peer):
        shift(side, 11)
    async with storage.transaction():
        assert await storage.try_acquire_lock("i-1", "w2", 10) is not None
        late = asyncio.ensure_future(write(peer, lease))
        await blocked(peer, late)
    with pytest.raises(LeaseLostError):
        await late
