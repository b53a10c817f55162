"""A worker process of the soak test: `python -m tests.soak.worker` with a `WorkerOptions` as JSON."""

import asyncio
import ctypes
import json
import logging
import os
import signal
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from perdure import App, OutboxEvent, Retention
from tests.soak import workflows

LEASE_SEC = 5.0
SWEEP_SEC = 5.0
CACHED_RUNS = 100  # few, so that the cache is soon full and grows no more
POOL_SIZE = 4  # few, so that each connection has soon prepared every statement


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """What a worker is to be."""

    url: str
    folder: str
    keep_sec: float  # retention
    version: int = 0
    serves_all: bool = True

    def command(self) -> list[str]:
        """The command that starts the worker."""
        return [sys.executable, "-m", "tests.soak.worker", json.dumps(asdict(self))]


def worker_id(pid: int) -> str:
    """The name of a worker in the database."""
    return f"soak:{pid}"


class Publisher:
    """Appends the ids of published events to a file, one write for each."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    async def publish(self, event: OutboxEvent) -> None:
        os.write(self._file, f"{event.event_id}\n".encode())


def main(options: WorkerOptions) -> None:
    """Execute runs until a signal comes, or the parent dies."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(process)d %(levelname)s %(message)s")
    workflows.Deployed.version = options.version
    keep = options.keep_sec
    app = App(
        options.url if options.url.startswith("sqlite") else f"{options.url}?pool_size={POOL_SIZE}",
        workflows=[*workflows.UNCHANGED, *([workflows.evolving] if options.serves_all else [])],
        lease=LEASE_SEC,
        max_cached_runs=CACHED_RUNS,
        retention=Retention(finished=keep, messages=keep, outbox=keep, every=min(SWEEP_SEC, keep), message_ids=keep),
        publisher=Publisher(Path(options.folder) / "published").publish,
        worker_id=worker_id(os.getpid()),
    )
    asyncio.run(app.serve())


if __name__ == "__main__":
    main(WorkerOptions(**json.loads(sys.argv[1])))
