"""What is measured about the disk, the databases and their drivers; prints the figures as JSON.

python benchmarks/limit/measures.py rows sqlite:///bench.db 4000
"""

import asyncio
import json
import sys
from collections.abc import Sequence

from benchmarks.engine.measures import Measure
from benchmarks.limit import disk, drivers, pgbench, prototype

MEASURES = {
    "syncs": Measure(disk.syncs, 500, "syncs/s", True, "the disk: 4 KB appended and synced"),
    "rows": Measure(prototype.rows, 20_000, "rows/s", True, "bare driver: rows, 100 a commit"),
    "steps": Measure(drivers.steps, 20_000, "steps/s", True, "bare driver: fenced steps, 100 a commit"),
    "pgbench-insert": Measure(
        pgbench.transactions(inserts=True), 10_000, "trans./s", True, "pgbench: single-row inserts"
    ),
    "pgbench-tpcb": Measure(pgbench.transactions(inserts=False), 5000, "trans./s", True, "pgbench: TPC-B-like"),
    "prototype-one-step": Measure(prototype.throughput(1), 20_000, "runs/s", True, "prototype: workflows of one step"),
    "prototype-ten-step": Measure(prototype.throughput(10), 50_000, "steps/s", True, "prototype: ten-step workflows"),
    "prototype-latency": Measure(prototype.latency, 300, "ms", False, "prototype: start to result of one run, p50"),
}
ONLY: dict[str, Sequence[str]] = {"pgbench-insert": ["postgresql"], "pgbench-tpcb": ["postgresql"]}  # databases


if __name__ == "__main__":
    name, url, size = sys.argv[1:]
    print(json.dumps(asyncio.run(MEASURES[name].play(url, int(size)))))
