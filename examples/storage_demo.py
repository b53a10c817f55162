"""The storage layer: two workers, an expired lease, and a stale write that is refused.

Run it with `make demo-storage`, or with another database: `python examples/storage_demo.py postgresql://localhost/test`.
"""

import asyncio
import sys
import tempfile
from pathlib import Path

from perdure.storage import HistoryEvent, LeaseLostError, Storage, WorkflowInstance, open_storage

LEASE_SEC = 0.4


def say(who: str, what: str) -> None:
    """Print one line."""
    print(f"{who:>8}  {what}", flush=True)


def step(order: str, name: str, result: bytes) -> HistoryEvent:
    """Return the history event of a completed step."""
    return HistoryEvent(order, name, "ActivityCompleted", result)


async def story(alice: Storage, bob: Storage, order: str) -> None:
    """Let Alice start, hang, and lose the lease to Bob."""
    lease = await alice.create_instance(
        WorkflowInstance(order, "order", b'{"total": 9.5}'), worker_id="alice", timeout_sec=LEASE_SEC
    )
    assert lease is not None
    say("alice", f"starts {order}: leased with token {lease.token}")
    await alice.append_history(step(order, "charge", b'{"receipt": 17}'), lease=lease)
    say("alice", "records 'charge' and then hangs, as after a long pause or a network failure")

    say("bob", f"tries to take the lease at once: {await bob.try_acquire_lock(order, 'bob', 30)}")
    taken = None
    while taken is None:  # until Alice's lease expires, by the database's clock
        await asyncio.sleep(0.05)
        taken = await bob.try_acquire_lock(order, "bob", 30)
    say("bob", f"takes the lease once it has expired: token {taken.token}")
    events, _ = await bob.get_history_paginated(order)
    say("bob", f"reads the history, {[event.activity_id for event in events]}, and continues from there")

    try:
        await alice.append_history(step(order, "ship", b'{"parcel": "A"}'), lease=lease)
    except LeaseLostError as error:
        say("alice", f"continues and writes: refused ({error.code})")
    await bob.append_history(step(order, "ship", b'{"parcel": "B"}'), lease=taken)
    await bob.complete_and_release(taken, b'{"shipped": true}')
    done = await alice.get_instance(order)
    assert done is not None
    events, _ = await alice.get_history_paginated(order)
    for event in events:
        say("history", f"{event.id}. {event.activity_id} -> {(event.event_data or b'').decode()}")
    say("result", f"{done.status.value} {(done.output_data or b'').decode()}, each step recorded once")


async def main(url: str) -> None:
    """Open two storages on one database, one for each worker."""
    async with open_storage(url) as alice, open_storage(url) as bob:
        await story(alice, bob, "order-A-1")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else f"sqlite:///{Path(folder) / 'demo.db'}"))
