"""Tests of the shop: no bank, no warehouse, no database server, and no waiting."""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import timedelta

import pytest
from shop import (
    CardDeclinedError,
    Receipt,
    ask_for_review,
    charge,
    order,
    pack,
    print_label,
    refund,
    release,
    reserve,
)

from perdure import RunHandle, WorkflowFailedError, activity_info
from perdure.testing import History, TestApp, assert_snapshot, history_of

pytestmark = pytest.mark.perdure(strict=True)  # a test that would call the real bank fails


@dataclass
class World:
    """What the activities have done, by the idempotency keys of their steps: a bank charges once for each key."""

    done: dict[str, str] = field(default_factory=dict)

    def note(self, what: str) -> None:
        """Note an effect of the activity that calls this."""
        self.done[activity_info().idempotency_key] = what

    def charge(self, order_id: str, amount: float) -> Receipt:
        """Do what the bank does."""
        self.note(f"charged {amount}")
        return Receipt(f"R-{order_id}", amount)

    def refund(self, order_id: str, result: Receipt | None) -> None:
        """Do what the bank does."""
        self.note(f"refunded {result.amount if result else 'nothing'}")


WORLD = World()


@pytest.fixture(autouse=True)
def world() -> Iterator[World]:
    """Replace all activities. A test can enter another stub on top."""
    WORLD.done.clear()
    with ExitStack() as stubs:
        for stub in (
            reserve.stub(using=lambda order_id: WORLD.note("reserved")),
            release.stub(using=lambda order_id: WORLD.note("released")),
            charge.stub(using=WORLD.charge),
            refund.stub(using=WORLD.refund),
            print_label.stub(returns="label"),
            pack.stub(returns=800),
            ask_for_review.stub(using=lambda customer: WORLD.note(f"asked {customer}")),
        ):
            stubs.enter_context(stub)
        yield WORLD


async def start(perdure: TestApp) -> RunHandle[str]:
    """Start an order and let it come to the point where it waits for the warehouse."""
    run = await order.options(id="order-A-1").start("A-1", "Ann", 9.5)
    await perdure.clock.advance(0)
    return run


async def ship(perdure: TestApp, run: RunHandle[str]) -> None:
    """Send the event of the warehouse."""
    await perdure.send_event("shipped", {"order": "A-1", "tracking": "T-17"}, to=run.id, id="shipped-A-1")


async def test_order_is_shipped_and_reviewed(perdure: TestApp, world: World) -> None:
    run = await start(perdure)
    assert await run.state() == "packed"
    await ship(perdure, run)
    assert await run.result() == "T-17"
    assert list(world.done.values()) == ["reserved", "charged 9.5", "asked Ann"]


async def test_review_is_requested_after_thirty_days(perdure: TestApp, world: World) -> None:
    run = await start(perdure)
    await ship(perdure, run)
    await perdure.clock.advance(timedelta(days=29))
    assert "asked Ann" not in world.done.values()
    await perdure.clock.advance(timedelta(days=2))  # the 30 days began a moment after the event
    assert "asked Ann" in world.done.values()


async def test_bank_that_is_busy_is_asked_again(perdure: TestApp) -> None:
    with charge.stub(raises=[ConnectionError("busy"), TimeoutError], returns=Receipt("R-1", 9.5)) as bank:
        run = await start(perdure)
        await ship(perdure, run)
        await run.result()
    assert [call.attempt for call in bank.calls] == [1, 2, 3]
    assert len(bank.called_with("A-1", 9.5)) == 3


async def test_slow_bank_times_out(perdure: TestApp) -> None:
    with charge.stub(returns=Receipt("R-1", 9.5), delay=60) as bank, pytest.raises(WorkflowFailedError) as failed:
        await (await start(perdure)).result()
    assert isinstance(failed.value.__cause__, TimeoutError)
    assert len(bank.calls) == 5


async def test_declined_card_releases_the_goods(perdure: TestApp, world: World) -> None:
    with charge.stub(raises=CardDeclinedError("no money")), pytest.raises(WorkflowFailedError, match="no money"):
        await (await start(perdure)).result()
    assert list(world.done.values()) == ["reserved", "released"]


async def test_order_that_is_not_shipped_is_undone_after_a_week(perdure: TestApp) -> None:
    run = await start(perdure)
    with pytest.raises(WorkflowFailedError, match="was not shipped within 7 days"):
        await run.result()
    history = await history_of(run)
    assert history.compensations == ["charge", "reserve"]
    assert_snapshot(history, "snapshots/not_shipped.txt")


async def test_cancelled_order_is_undone(perdure: TestApp, world: World) -> None:
    run = await start(perdure)
    await run.cancel("changed my mind")
    await perdure.clock.run_until_idle()
    assert list(world.done.values()) == ["reserved", "charged 9.5", "refunded 9.5", "released"]


@pytest.mark.any_order(runs=10)
async def test_label_and_parcel_may_be_ready_in_any_order(perdure: TestApp) -> None:
    run = await start(perdure)
    await ship(perdure, run)
    assert await run.result() == "T-17"


@pytest.mark.crash_everywhere(effects=lambda: WORLD.done, setup=WORLD.done.clear)
async def test_order_survives_every_crash(perdure: TestApp) -> None:
    run = await order.options(id="order-A-1").start("A-1", "Ann", 9.5)
    await ship(perdure, run)
    assert await run.result() == "T-17"


@pytest.mark.crash_everywhere(
    effects=lambda: WORLD.done,
    setup=WORLD.done.clear,
    uncompensated=[print_label, pack],  # what is released need not be unpacked
    limit=100,  # a sample, because the first steps are crashed at every write above
)
async def test_failed_order_is_undone_whatever_crashes(perdure: TestApp) -> None:
    run = await order.options(id="order-A-1").start("A-1", "Ann", 9.5)
    with pytest.raises(WorkflowFailedError, match="was not shipped"):
        await run.result()


@pytest.mark.replay("histories/*.json")
def test_recorded_orders_continue_with_this_code(history: History) -> None:
    assert history.steps[:2] == ["reserve", "charge"]
