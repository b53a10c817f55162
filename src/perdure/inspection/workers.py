"""The workers of a database, as their heartbeats describe them."""

from dataclasses import dataclass
from datetime import datetime

from perdure.engine.api.client import Client, storage_of
from perdure.engine.worker.stuck import about_worker, is_live


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """A worker and its last heartbeat, by the clock of the database.

    - `id`, `started_at`, `beat_at`: its name, when it started, and its last heartbeat.
    - `is_live`: whether it has sent a heartbeat recently; a worker that died is listed for a week.
    - `workflows`: the workflows that it executes; None if it may execute all.
    - `lease_sec`: how long its leases last.
    """

    id: str
    started_at: datetime
    beat_at: datetime
    is_live: bool
    workflows: tuple[str, ...] | None
    lease_sec: float | None


async def list_workers(client: Client) -> list[WorkerInfo]:
    """Return the workers of the database, the longest running first. A worker that stopped regularly is not listed."""
    storage = storage_of(client)
    now = await storage.now()
    found: list[WorkerInfo] = []
    for row in await storage.list_workers():
        about = about_worker(row)
        names, lease = about.get("workflows"), about.get("lease_sec")
        found.append(
            WorkerInfo(
                row.worker_id,
                row.started_at,
                row.beat_at,
                is_live(row, now),
                tuple(str(name) for name in names) if isinstance(names, list) else None,
                float(lease) if isinstance(lease, int | float) else None,
            )
        )
    return found
