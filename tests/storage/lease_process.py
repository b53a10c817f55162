"""A worker process that the test stops at any moment: `python -m tests.storage.lease_process <url> <leases>`.

It takes, renews, releases and sweeps leases without a pause, and prints one line when it has begun.
"""

import asyncio
import sys

from perdure.model.records import Lease, WorkflowInstance
from perdure.storage.stores import SQLStorage, open_storage
from tests.support.storages import shift

FREE = 20


async def main(url: str, count: str) -> None:
    async with open_storage(url) as storage, open_storage(url) as later:
        shift(later, 3600)  # to it what is taken below has expired
        held = await _held(storage, int(count))
        free = [f"free-{n}" for n in range(FREE)]
        await storage.create_instances([WorkflowInstance(instance_id, "wf") for instance_id in free])
        print("ready", flush=True)
        while True:
            await _turn(storage, later, held, free)


async def _held(storage: SQLStorage, count: int) -> list[Lease]:
    """Leases of two owners, that no sweep ends."""
    ids = [f"held-{n}" for n in range(count)]
    await storage.create_instances([WorkflowInstance(instance_id, "wf") for instance_id in ids])
    leases = [
        *await storage.acquire_locks(ids[::2], "w#0", 86400),
        *await storage.acquire_locks(ids[1::2], "w#1", 86400),
    ]
    return [lease for lease in leases if lease]


async def _turn(storage: SQLStorage, later: SQLStorage, held: list[Lease], free: list[str]) -> None:
    assert all(await storage.refresh_locks(held, 86400))
    taken = await storage.acquire_locks(free, "w#0", 30)
    one = next(lease for lease in taken if lease)
    await storage.refresh_lock(one.instance_id, one.worker_id, 30, lease=one)
    await storage.release_lock(one.instance_id, one.worker_id, lease=one)
    assert await storage.try_acquire_lock(one.instance_id, "w#1", 30)
    assert len(await later.cleanup_stale_locks()) == len(free)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
