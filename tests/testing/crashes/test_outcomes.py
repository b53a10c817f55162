"""What `crash_everywhere()` compares after a play, and what it reports as left behind."""

from typing import Any, cast

from perdure.engine.replay.context import ActivityInfo
from perdure.model.records import (
    ChannelMode,
    ChannelWait,
    HistoryEvent,
    HistoryEventType,
    TimerSubscription,
    WorkflowInstance,
)
from perdure.model.states import WorkflowStatus
from perdure.storage.contract import Storage
from perdure.testing.crashes.outcomes import Outcome, Witness, collect, differences
from perdure.testing.reference import Reference

RANDOM = "0190b0a0-0000-7000-8000-{:012d}"


async def storage_with_run(id: str = "order-1", **fields: Any) -> Storage:
    storage = cast(Storage, Reference())
    await storage.create_instance(WorkflowInstance(id, "order", **fields))
    return storage


async def outcome(storage: Storage, witness: Witness | None = None, **values: Any) -> Outcome:
    return await collect(storage, witness or Witness(), values.get("result"), values.get("effects"), ())


def call(run: str, step: str, attempt: int = 1) -> ActivityInfo:
    return ActivityInfo(run, "order", step.partition(":")[2], step, attempt, f"{run}::{step}", 1)


async def test_equal_outcomes_have_no_differences() -> None:
    first, second = await outcome(await storage_with_run()), await outcome(await storage_with_run())
    assert differences(first, second) == []


async def test_lease_that_is_left_behind_is_a_mistake() -> None:
    storage = await storage_with_run()
    await storage.try_acquire_lock("order-1", "worker", 15)
    assert (await outcome(storage)).mistakes == ["left behind: lease of run order-1"]


async def test_timer_of_an_ended_run_is_a_mistake() -> None:
    storage = await storage_with_run()
    world = cast(Any, storage).world
    await storage.register_timer_subscription(TimerSubscription("order-1", "1:timer", await storage.now()))
    timers = dict(world.tables.workflow_timer_subscriptions)
    await storage.update_instance_output("order-1", b'"done"')
    world.tables.workflow_timer_subscriptions.update(timers)
    assert (await outcome(storage)).mistakes == ["run order-1 has ended, and its wait 1:timer is left behind"]


async def test_other_waits_and_subscriptions_are_compared() -> None:
    storage, witness = await storage_with_run(), Witness(channels={"news"})
    lease = await storage.try_acquire_lock("order-1", "worker", 15)
    assert lease is not None
    await storage.suspend(lease, [ChannelWait("news", "1:receive", subscribe=ChannelMode.BROADCAST)])
    (wrong,) = differences(
        await outcome(await storage_with_run(status=WorkflowStatus.WAITING_FOR_MESSAGE)),
        await outcome(storage, witness),
    )
    assert "+ wait of run order-1: 1:receive" in wrong
    assert "+ subscription of run order-1: news" in wrong


async def test_messages_are_counted_but_after_a_restart_only_their_set_is_compared() -> None:
    witness = Witness(channels={"news"})
    once, twice = await storage_with_run(), await storage_with_run()
    for storage in (once, twice, twice):
        await storage.publish_to_channel("news", b'"hello"')
    first, second = await outcome(once, witness), await outcome(twice, witness)
    (wrong,) = differences(first, second)
    assert wrong == 'messages and events (- undisturbed, + here):\n  + news "hello"'
    assert differences(first, second, restarted=True) == []


async def test_second_call_with_the_same_key_makes_no_difference_but_another_key_does() -> None:
    once = Witness(calls=[call("order-1", "1:charge")])
    again = Witness(calls=[call("order-1", "1:charge"), call("order-1", "1:charge", 2)])
    other = Witness(calls=[call("order-1", "1:charge"), call("order-1", "1:refund")])
    storage = await storage_with_run()
    expected = await outcome(storage, once)
    assert differences(expected, await outcome(storage, again)) == []
    (wrong,) = differences(expected, await outcome(storage, other))
    assert "+ refund order-1::1:refund" in wrong


async def test_steps_compensations_status_result_and_effects_are_compared() -> None:
    expected = await outcome(await storage_with_run(), result=1, effects=["mail"])
    storage = await storage_with_run()
    for kind, data in (
        (HistoryEventType.ACTIVITY_COMPLETED, b"null"),
        (HistoryEventType.COMPENSATION_EXECUTED, b'{"activity_id": "1:charge"}'),
    ):
        await storage.append_history(HistoryEvent("order-1", f"1:{kind}", kind, data))
    await storage.update_instance_output("order-1", b'"done"')
    wrong = differences(expected, await outcome(storage, result=2, effects=[]))
    assert [each.splitlines()[0] for each in wrong] == [
        "the result of the scenario: undisturbed 1, here 2",
        "effects: undisturbed ['mail'], here []",
        "runs (- undisturbed, + here):",
        "steps of the runs (- undisturbed, + here):",
        "compensations (- undisturbed, + here):",
    ]
    assert "+ order-1 1:charge CompensationExecuted" in wrong[-1]


async def test_random_ids_of_runs_are_replaced_by_names() -> None:
    first = await outcome(await storage_with_run(RANDOM.format(1)))
    second = await outcome(await storage_with_run(RANDOM.format(2)))
    assert first.has_random_ids
    assert differences(first, second) == []
    assert list(first.lines["runs"]) == ["<order 1> (order): running "]
