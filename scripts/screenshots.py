"""Make the screenshots of the documentation: `python -m scripts.screenshots` writes docs/images/dashboard-*.png.

A shop executes some hundred runs on a new SQLite file. Then their times are spread over the last hour, as if they had
happened then.
"""

import asyncio
import random
import sqlite3
import tempfile
from collections.abc import Awaitable, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal

from perdure import App, WorkflowFailedError
from perdure.storage.administration import administration_of
from tests.dashboard import returns, shop
from tests.dashboard.browser import browser, watched
from tests.dashboard.test_pages import stuck
from tests.engine.waiting import waiting
from tests.support.storages import storage_of

IMAGES = Path(__file__).parents[1] / "docs" / "images"
ORDERS = 240
SHOTS: tuple[tuple[str, str, Literal["light", "dark"], int, int], ...] = (
    ("dashboard-overview.png", "/", "light", 1280, 800),
    ("dashboard-overview-dark.png", "/", "dark", 1280, 800),
    ("dashboard-runs.png", "/runs?q=state:waiting", "light", 1280, 560),
    ("dashboard-run.png", "/runs/payment-9", "light", 1280, 738),
    ("dashboard-audit.png", "/audit", "light", 1280, 400),
    ("dashboard-locks.png", "/locks", "dark", 1280, 400),
    ("dashboard-phone.png", "/runs/approval-3", "light", 375, 760),
    ("dashboard-source.png", "/runs/return-2#source", "light", 1280, 1000),
    ("dashboard-timeline.png", "/runs/trial-1", "dark", 1280, 523),
)


async def main() -> None:
    """Execute the shop, spread its runs over time, and make all screenshots."""
    with tempfile.TemporaryDirectory() as folder:
        file = f"{folder}/shop.db"
        async with App(f"sqlite:///{file}", worker_id="worker-1") as app:
            await _execute(app)
            _spread(file, "order-%")
            _spread(file, "payment-%")
            await _shoot(app, SHOTS[:-2])
            await returns.fill(app)
            await shop.trial.options(id="trial-1")("C-1")
            _spread(file, "trial-1")
            await _shoot(app, SHOTS[-2:])
            shop.gate.set()
            await app.get("delivery-7").result(60)


async def _execute(app: App) -> None:
    shop.broken |= {f"A-{number}" for number in range(0, ORDERS, 17)}
    orders = [
        shop.order.options(id=f"order-{number}")(f"A-{number}", 9.5 + number, number % 9 + 1)
        for number in range(ORDERS)
    ]
    await asyncio.gather(*(_ended(each) for each in orders))
    shop.broken.add("A-9")
    await _ended(shop.payment.options(id="payment-9")("A-9"))
    for number in range(1, 6):
        await shop.approval.options(id=f"approval-{number}").start(f"A-{number}")
        await shop.subscription.options(id=f"subscription-{number}").start(f"C-{number}")
        await waiting(app, f"approval-{number}", f"subscription-{number}")
    await shop.delivery.options(id="delivery-7").start("A-7")
    await stuck(app, "refund-4")
    await _operate(app)


async def _operate(app: App) -> None:
    """Record what people did."""
    administration = administration_of(storage_of(app))
    assert administration is not None
    audit = administration.audit
    await administration.views.add("failed orders", "state:failed workflow:shop.order", "Ada")
    for actor, action, target, query, reason, outcome in (
        ("Ada", "send", "approval-9", "", "the sender was down last night", "sent order.approved"),
        (
            "Ada",
            "retry",
            "bulk-7f3a",
            "state:failed workflow:shop.order",
            "the bank answers again",
            "started bulk-7f3a",
        ),
        ("Grace", "cancel", "approval-8", "", "ordered twice, see ticket 4711", "done"),
        ("Grace", "delete", "order-3", "", "the customer asked for it", "done"),
        ("Ada", "requeue", "e-21", "", "the broker has a route now", "done"),
        ("Grace", "retry", "payment-2", "", "card replaced", "started payment-2~r1"),
    ):
        await audit.finish(await audit.add(actor, action, reason, target=target, query=query), outcome)


async def _ended(run: Awaitable[Any]) -> None:
    with suppress(WorkflowFailedError):
        await run


def _spread(file: str, ids: str) -> None:
    """Move and stretch the times of each of these runs that has ended."""
    chance = random.Random(7)
    with sqlite3.connect(file) as database:
        rows = database.execute(
            "SELECT instance_id, started_at, updated_at FROM workflow_instances"
            " WHERE status IN ('completed', 'failed') AND instance_id LIKE ?",
            (ids,),
        ).fetchall()
        for id, started, ended in rows:
            pause = timedelta(days=3, hours=4) if id == "trial-1" else timedelta(0)
            begin = datetime.now(UTC) - timedelta(minutes=chance.random() ** 1.4 * 57 + 1) - pause
            length = min(chance.lognormvariate(1.6, 0.6), 50)  # seconds, also if the machine was busy
            took = datetime.fromisoformat(ended) - datetime.fromisoformat(started)
            _move(database, id, _Times(started, begin, length / took.total_seconds(), pause), ended)


class _Times:
    """How the times of a run become others; what follows its timer comes after a pause."""

    def __init__(self, started: str, begin: datetime, factor: float, pause: timedelta) -> None:
        self._started, self._begin, self._factor, self._pause = started, begin, factor, pause
        self.fired = "9"

    def moved(self, text: str) -> str:
        """Return the other time."""
        passed = (datetime.fromisoformat(text) - datetime.fromisoformat(self._started)) * self._factor
        late = self._pause if text >= self.fired else timedelta(0)
        return (self._begin + passed + late).replace(tzinfo=None).isoformat(" ", "microseconds")

    @property
    def begin(self) -> str:
        """Return the other start."""
        return self.moved(self._started)


def _move(database: sqlite3.Connection, id: str, times: _Times, ended: str) -> None:
    history = database.execute(
        "SELECT id, activity_id, created_at FROM workflow_history WHERE instance_id = ?", (id,)
    ).fetchall()
    times.fired = next((at for _, step, at in history if step.endswith(":timer")), "9")
    for row, _, at in history:
        database.execute("UPDATE workflow_history SET created_at = ? WHERE id = ?", (times.moved(at), row))
    database.execute(
        "UPDATE workflow_instances SET started_at = ?, updated_at = ? WHERE instance_id = ?",
        (times.begin, times.moved(ended), id),
    )


async def _shoot(app: App, shots: Sequence[tuple[str, str, Literal["light", "dark"], int, int]]) -> None:
    IMAGES.mkdir(exist_ok=True)
    async with browser() as chromium:
        for name, path, scheme, width, height in shots:
            size = {"width": width, "height": height}
            async with watched(app, chromium, color_scheme=scheme, viewport=size) as seen:
                await seen.go(path)
                await seen.page.wait_for_selector("#live-state[data-on]")
                await seen.page.screenshot(path=str(IMAGES / name))
                assert seen.problems == [], seen.problems


if __name__ == "__main__":
    asyncio.run(main())
