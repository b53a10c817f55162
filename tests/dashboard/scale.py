"""How long each page of the dashboard and its JSON take with many runs.

python -m tests.dashboard.scale                                          1,000,000 runs on each database
python -m tests.dashboard.scale --database postgresql --runs 100000
"""

import argparse
import asyncio
import logging
import statistics
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, TextIO

import httpx

from benchmarks.databases import fresh_database, server_for
from benchmarks.growth.copies import copy, settle
from perdure import App, Client, WorkflowCancelledError, WorkflowFailedError
from perdure.dashboard import dashboard_app
from perdure.model.records import OutboxEvent, OutboxStatus
from perdure.storage.administration import administration_of
from perdure.storage.stores import open_storage
from tests.dashboard import shop
from tests.engine.waiting import waiting
from tests.support.databases import DATABASES

RUNS = 1_000_000
SHARES = {"completed": 0.7, "failed": 0.1, "waiting": 0.1, "cancelled": 0.05, "due": 0.05}
DAYS = 30.0
LIMIT_MS = 300.0
TIMES = 5
EVENTS = 200

PAGES = (
    "/",
    "/runs",
    "/runs?q=state:completed",
    "/runs?q=state:waiting",
    "/runs?q=workflow:shop.order",
    "/runs?q=workflow:shop.gone",
    "/runs?q=state:failed workflow:shop.order",
    "/runs?q=started:<1d",
    "/runs?q=started:>20d state:completed",
    "/runs?q=started:>20d workflow:shop.approval",
    "/runs?q=state:running",
    "/runs?q=stuck:yes",
    "/runs/completed-7",
    "/runs/failed-7",
    "/runs/waiting-7",
    "/runs/failed-7/history",
    "/runs/cancelled-7",
    "/runs/due-7",
    "/bulk?action=retry&q=state:failed",
    "/bulk?action=cancel&q=state:waiting workflow:shop.approval",
    "/bulk?action=cancel&q=stuck:yes",
    "/bulk?action=delete&q=state:completed started:>20d",
    "/waits",
    "/channels",
    "/channels?channel=order.approved",
    "/workers",
    "/locks",
    "/schedules",
    "/outbox",
    "/outbox?state=invalid",
    "/audit",
    "/audit?run=failed-7",
)


class Timing(NamedTuple):
    """How long a page took: the first time, in the middle, and at most; and the median of its JSON."""

    path: str
    first_ms: float
    median_ms: float
    most_ms: float
    json_ms: float

    @property
    def is_fast(self) -> bool:
        """Return whether the page takes less than the limit the first time, and it and its JSON do as a rule."""
        return max(self.first_ms, self.median_ms, self.json_ms) < LIMIT_MS


async def fill(url: str, runs: int) -> None:
    """Execute one run of each kind, and copy it so often that there are so many runs, over the last month."""
    shop.broken.add("A-2")
    async with App(url) as app:
        await shop.order.options(id="original-completed")("A-1")
        with suppress(WorkflowFailedError):
            await shop.order.options(id="original-failed")("A-2")
        for name in ("waiting", "cancelled"):
            await shop.approval.options(id=f"original-{name}").start("A-3")
            await waiting(app, f"original-{name}")
        await app.cancel("original-cancelled", "ordered twice")
        with suppress(WorkflowCancelledError):
            await app.get("original-cancelled").result(60)
    async with App(url, workflows=[]):
        await shop.payment.options(id="original-due").start("A-4")  # no worker takes it: it is stuck
    async with open_storage(url) as storage:
        pieces: Any = storage._backend.driver
        for name, share in SHARES.items():
            step_sec = DAYS * 86400 / max(runs * share, 1)
            for first in range(0, round(runs * share), 10_000):
                ago = pieces.piece_ago(f"(numbers.n + {first}) * {step_sec:.6f}")
                end = min(first + 10_000, round(runs * share))
                changed = {"started_at": ago, "updated_at": ago}
                await copy(storage, f"original-{name}", name, first, end, changed=changed)
        administration = administration_of(storage)
        assert administration is not None
        for number in range(EVENTS):
            await storage.add_outbox_event(OutboxEvent(f"e-{number}", "order.paid", f"shop {number % 7}", b"{}"))
            await administration.audit.add("Ada", "retry", "fixed", target="failed-7", runs=["failed-7"])
        for event in (await administration.surveys.list_outbox(OutboxStatus.PENDING, EVENTS))[::2]:
            await storage.mark_outbox_event_failed(event.event_id, error="no route")
        await settle(storage)


async def measure(client: Client, times: int = TIMES) -> AsyncIterator[Timing]:
    """Ask for each page several times."""
    transport = httpx.ASGITransport(dashboard_app(client))
    async with httpx.AsyncClient(
        transport=transport, base_url="http://127.0.0.1", headers={"Accept": "text/html"}, timeout=60
    ) as http:
        for path in PAGES:
            yield await _timing(http, path, times)
        (cause, *_) = (await http.get("/index.json")).json()["failures"]
        yield await _timing(http, f"/failures/{cause['fingerprint']}", times)


async def _timing(http: httpx.AsyncClient, path: str, times: int) -> Timing:
    taken = [await _timed(http, path) for _ in range(times)]
    as_json = [await _timed(http, _twin(path)) for _ in range(times)]
    return Timing(path, taken[0], statistics.median(taken), max(taken), statistics.median(as_json))


def _twin(path: str) -> str:
    page, mark, query = path.partition("?")
    return f"{page.rstrip('/') or '/index'}.json{mark}{query}"


async def _timed(http: httpx.AsyncClient, path: str) -> float:
    began = time.perf_counter()
    response = await http.get(path)
    assert response.status_code == 200, f"{path}: {response.status_code}"
    return 1000 * (time.perf_counter() - began)


async def run(databases: Sequence[str], runs: int, out: TextIO) -> bool:
    """Measure on each database, print the figures, and return whether all pages are fast."""
    is_fast = True
    for database in databases:
        with server_for(database) as server:
            async with fresh_database(database, server) as url:
                print(f"{database}: creating {runs:,} runs", file=out, flush=True)
                await fill(url, runs)
                async with Client(url) as client:
                    found = [each async for each in measure(client)]
        print(f"{'page':<60}{'first':>8}{'median':>8}{'most':>8}{'JSON':>8}  (ms)", file=out)
        for each in found:
            figures = "".join(f"{each_ms:8.0f}" for each_ms in each[1:])
            print(f"{each.path:<60}{figures}{'' if each.is_fast else '  slow'}", file=out)
        is_fast = is_fast and all(each.is_fast for each in found)
    return is_fast


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure what the arguments ask for; return 1 if a page takes longer than the limit."""
    parser = argparse.ArgumentParser("python -m tests.dashboard.scale", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--database", nargs="+", choices=DATABASES, default=DATABASES, help="default: all")
    parser.add_argument("--runs", type=int, default=RUNS, help=f"how many runs there are (default: {RUNS:,})")
    asked = parser.parse_args(arguments)
    logging.getLogger("perdure").addHandler(logging.NullHandler())  # a run that fails on purpose is no news here
    return 0 if asyncio.run(run(asked.database, asked.runs, sys.stdout)) else 1


if __name__ == "__main__":
    sys.exit(main())
