"""Samples of the processes and the database: memory, connections, threads, files, rows and bytes."""

import os
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from perdure.storage.migrations import tables
from perdure.storage.stores import SQLStorage
from perdure.testing.servers import Server
from tests.soak.load import Load
from tests.soak.pool import Pool, Worker

MB = 1 << 20

BYTES = {
    "sqlite": "SELECT name, sum(pgsize) FROM dbstat WHERE name IN ({names}) GROUP BY name",
    "postgresql": "SELECT relname, pg_total_relation_size(oid) FROM pg_class WHERE relname IN ({names})",
    "mysql": "SELECT table_name, data_length + index_length FROM information_schema.tables "
    "WHERE table_schema = DATABASE() AND table_name IN ({names})",
}
CONNECTIONS = {
    "postgresql": "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()",
    "mysql": "SELECT count(*) FROM information_schema.processlist WHERE db = DATABASE()",
}


@dataclass(frozen=True, slots=True)
class WorkerSample:
    """One worker process at one time."""

    pid: int
    age_sec: float
    memory_mb: float
    threads: int
    files: int


@dataclass(frozen=True, slots=True)
class Sample:
    """Everything at one time."""

    at_sec: float
    figures: dict[str, float]
    workers: list[WorkerSample]
    rows: dict[str, int]
    bytes: dict[str, int]


@dataclass(slots=True)
class Sampler:
    """Takes the samples of one database."""

    backend: str
    storage: SQLStorage
    files: Path  # of SQLite, or the data directory of a server
    server: Server | None
    pool: Pool
    load: Load
    began: float = field(default_factory=time.monotonic)
    samples: list[Sample] = field(default_factory=list)
    _ended: int = 0
    _newest: int = 0
    _last: float = field(default_factory=time.monotonic)

    async def take(self) -> Sample:
        """Take a sample; rates and lags are those since the last one."""
        rows = await rows_of_tables(self.storage, self.backend)
        workers = [found for worker in self.pool.workers if (found := _worker(worker)) is not None]
        figures = {
            **await self._rates(),
            "runs in progress": self.load.in_progress,
            "load of the machine": os.getloadavg()[0],
            **_spread("probe", self.load.probes),
            **_spread("timer lag", self.load.lags),
            **_memory(workers, self.pool.long_lived.pid),
            **(await self._of_server() if self.server else {}),
            **self._log_size(),
            "rows": sum(rows.values()),
        }
        sizes = await self._sizes()
        figures["tables MB"] = sum(sizes.values()) / MB
        sample = Sample(round(time.monotonic() - self.began, 2), figures, workers, rows, sizes)
        self.samples.append(sample)
        return sample

    async def _value(self, statement: str) -> int:
        return int(await self.storage.db().fetchval(statement) or 0)

    async def _rates(self) -> dict[str, float]:
        """Runs that ended, and rows that were added to the history; its ids only grow."""
        now, ended = time.monotonic(), self.load.ended
        newest = max(self._newest, await self._value("SELECT max(id) FROM workflow_history"))
        passed, self._last = now - self._last, now
        runs, rows = (ended - self._ended) / passed, (newest - self._newest) / passed
        self._ended, self._newest = ended, newest
        return {"runs per second": runs, "history rows per second": rows}

    async def _of_server(self) -> dict[str, float]:
        assert self.server is not None
        assert self.server.pid is not None
        memory = sum(_shared_memory(pid) for pid in _family(self.server.pid))
        return {"connections": await self._value(CONNECTIONS[self.backend]), "memory of the server MB": memory}

    def _log_size(self) -> dict[str, float]:
        """The write-ahead log; MariaDB's has a fixed size, so there the undo log counts."""
        names = {"sqlite": "*-wal", "postgresql": "data/pg_wal/0*", "mysql": "data/ibdata*"}
        sizes = [_file_size(path) for path in self.files.glob(names[self.backend])]
        return {"undo log MB" if self.backend == "mysql" else "write-ahead log MB": sum(sizes) / MB}

    async def _sizes(self) -> dict[str, int]:
        names = ", ".join(f"'{table}'" for table in tables(self.backend))
        found = await self.storage.db().fetch(BYTES[self.backend].format(names=names))
        return {str(name): int(size) for name, size in sorted(found)}


async def rows_of_tables(storage: SQLStorage, backend: str) -> dict[str, int]:
    """The number of rows of each table."""
    return await counted(storage, {table: f"SELECT count(*) FROM {table}" for table in sorted(tables(backend))})


async def counted(storage: SQLStorage, statements: Mapping[str, str]) -> dict[str, int]:
    """The values of several statements, which are executed as one."""
    row = await storage.db().fetchrow("SELECT " + ", ".join(f"({statement})" for statement in statements.values()))
    return dict(zip(statements, map(int, row or ()), strict=True))


def _spread(name: str, values: list[float]) -> dict[str, float]:
    """The median and the maximum of the values, which are then forgotten; nothing if there are none."""
    taken = list(values)
    values.clear()
    return {f"{name} median sec": median(taken), f"{name} max sec": max(taken)} if taken else {}


def _memory(workers: list[WorkerSample], long_lived: int) -> dict[str, float]:
    found = {f"{name} of the long-lived worker": 0.0 for name in ("memory MB", "threads", "files")}
    for worker in workers:
        if worker.pid == long_lived:
            values = (worker.memory_mb, worker.threads, worker.files)
            found = dict(zip(found, values, strict=True))
    return found


def _worker(worker: Worker) -> WorkerSample | None:
    """None if the process has just ended."""
    process = Path(f"/proc/{worker.pid}")
    with suppress(OSError, KeyError):  # a process that was not waited for yet has no memory
        threads, files = (len(list((process / name).iterdir())) for name in ("task", "fd"))
        memory = _status(process / "status")["VmRSS"] / 1024
        return WorkerSample(worker.pid, round(time.monotonic() - worker.started, 2), round(memory, 2), threads, files)
    return None


def _shared_memory(pid: int) -> float:
    """The memory of a process in MB, where a page that n processes share counts 1/n."""
    with suppress(OSError):  # it has just ended
        return _status(Path(f"/proc/{pid}/smaps_rollup"))["Pss"] / 1024
    return 0.0


def _status(path: Path) -> Mapping[str, float]:
    """The lines with a number."""
    found: dict[str, float] = {}
    for line in path.read_text().splitlines():
        name, _, rest = line.partition(":")
        words: list[Any] = rest.split()
        if words and words[0].isdigit():
            found[name] = float(words[0])
    return found


def _family(pid: int) -> list[int]:
    """The process and all its descendants."""
    found = [pid]
    with suppress(OSError):
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            found += _family(int(child))
    return found


def _file_size(path: Path) -> int:
    with suppress(OSError):  # removed meanwhile
        return path.stat().st_size
    return 0
