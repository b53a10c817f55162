"""Random sequences of steps about related aggregates, with fixed scenes in them."""

from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass, replace
from random import Random
from typing import Any

from perdure.model.records import (
    ChannelMessage,
    ChannelMode,
    ChannelWait,
    TimerSubscription,
    TimerWait,
    WorkflowInstance,
)
from perdure.storage.channels import direct_channel
from tests.storage.properties import values as d
from tests.storage.properties.operations import AGGREGATES, FRESH, Operations, args
from tests.storage.properties.steps import Held, Step, in_turn, is_harmless

WORKERS = 3
LONGEST, BEFORE_BURST = 30, 8  # acts, of which some are scenes of several steps

OPERATIONS = {name: make for aggregate in AGGREGATES.values() for name, make in aggregate.items()}

THEMES = (
    ("instances", "locks", "history"),
    ("instances", "listing", "archive"),
    ("channels", "waits", "delivery"),
    ("channels", "delivery"),
    ("timers", "waits", "delivery"),
    ("history", "archive", "compensations"),
    ("outbox", "transactions"),
    ("outbox",),
    ("groups", "workers", "system_locks"),
)

# What brings every theme on.
COMMON: Operations = {
    "advance_clock": OPERATIONS["advance_clock"],
    "try_acquire_lock": OPERATIONS["try_acquire_lock"],
    "create_instance": args(
        instance=FRESH, worker_id=d.one("w1", None, "w2"), timeout_sec=d.leases_sec, source_code=d.one("")
    ),
    "begin_transaction": args(),
    "commit_transaction": args(),
    "rollback_transaction": args(),
}

BORN = [
    WorkflowInstance("Pay:1", "order", b'{"n": 1}'),
    WorkflowInstance("pay:1", "refund"),
    WorkflowInstance("ü 1", "order"),
]


def sequence(rng: Random, longest: int = LONGEST) -> list[Step]:
    """Steps in the aggregates of a theme and another one."""
    names = {*rng.choice(THEMES), rng.choice(sorted(AGGREGATES))}
    aggregates = [*(AGGREGATES[name] for name in sorted(names) for _ in range(2)), COMMON]
    scenes = [SCENES[name] for name in sorted(names) if name in SCENES]
    steps = [
        Step("notify", {"loud": d.flags(rng)}),
        Step("create_instances", {"instances": BORN[: rng.choice((2, 3))], "worker_id": "w1", "timeout_sec": 300.0}),
    ]
    for _ in range(rng.randint(3, longest)):
        if scenes and not rng.randrange(5):
            steps += [step for step in rng.choice(scenes)(rng) if rng.randrange(10)]  # sometimes a step is left out
        else:
            operation, make = rng.choice(list(rng.choice(aggregates).items()))
            steps.append(Step(operation, make(rng)))
    workers = rng.randint(1, WORKERS)
    return in_turn([_by_any_worker(rng, step, workers) for step in steps])


# Operations of one commit each, whose answer is whole: at once they must look as if one came after the other.
ATOMIC = (
    "create_instance",
    "update_instance_status",
    "update_instance_activity",
    "update_instance_output",
    "complete_and_release",
    "cancel_instance",
    "try_acquire_lock",
    "release_lock",
    "append_history",
    "archive_history",
    "cleanup_instance_subscriptions",
    "recur_instance",
    "register_timer_subscription",
    "register_timer_subscription_and_release_lock",
    "remove_timer_subscription",
    "fire_timer",
    "publish_to_channel",
    "subscribe_to_channel",
    "unsubscribe_from_channel",
    "clear_channel_waiting_state",
    "claim_channel_message",
    "delete_channel_message",
    "update_delivery_cursor",
    "suspend",
    "register_channel_receive_and_release_lock",
    "deliver_channel_message",
    "expire_channel_wait",
    "add_compensation",
    "join_group",
    "leave_group",
    "leave_all_groups",
    "add_outbox_event",
    "mark_outbox_event_sent",
    "settle_outbox_events",
    "mark_outbox_event_failed",
    "increment_outbox_attempts",
    "requeue_outbox_event",
    "try_acquire_system_lock",
    "release_system_lock",
    "beat_worker",
)


def burst(rng: Random) -> list[Step]:
    """Steps of all workers at once, about one instance and one channel."""
    instance_id, channel = rng.choice(d.INSTANCE_IDS), rng.choice(d.CHANNELS[2:])
    return [_about(_random_step(rng, ATOMIC, worker), instance_id, channel) for worker in range(WORKERS)]


def _random_step(rng: Random, operations: Sequence[str], worker: int) -> Step:
    operation = rng.choice(operations)
    return Step(operation, OPERATIONS[operation](rng), worker)


def _about(step: Step, instance_id: str, channel: str) -> Step:
    """The step with another instance and channel in the place of its own."""
    about = {"instance_id": instance_id, "channel": channel}

    def moved(name: str, value: Any) -> Any:
        if isinstance(value, Held):
            return Held(instance_id, value.back)
        if is_dataclass(value) and not isinstance(value, type):
            return replace(value, **{each.name: about[each.name] for each in fields(value) if each.name in about})
        return about.get(name, value)

    return replace(step, arguments={name: moved(name, value) for name, value in step.arguments.items()})


def _by_any_worker(rng: Random, step: Step, workers: int) -> Step:
    """The worker of a step: mostly the first, so that transactions make progress; any worker may read."""
    others = is_harmless(step) or not rng.randrange(3)
    return replace(step, worker=rng.randrange(workers) if others else 0)


def _step(rng: Random, operation: str, **arguments: Any) -> Step:
    return Step(operation, {**OPERATIONS[operation](rng), **arguments})


def _taking(rng: Random, instance_id: str) -> list[Step]:
    """The worker that holds it loses it."""
    return [
        _step(rng, "advance_clock", quanta=10),
        _step(rng, "try_acquire_lock", instance_id=instance_id, worker_id="w1"),
    ]


def _receiving(rng: Random) -> list[Step]:
    """An instance waits for a message, which comes or not."""
    instance_id, name, mode = rng.choice(d.INSTANCE_IDS), rng.choice(("news", "jobs")), rng.choice(list(ChannelMode))
    channel = direct_channel(name, instance_id) if mode is ChannelMode.DIRECT else name
    whom = {"instance_id": instance_id}
    who = {**whom, "channel": channel}
    wait = ChannelWait(channel, d.activity_ids(rng), after=d.maybe(d.spans(3))(rng), where=d.values(rng))
    message = ChannelMessage(id=d.seen("message")(rng), channel=channel, message_id="")
    ends = (
        [_step(rng, "deliver_channel_message", message=message, lease=None, activity_id=None, where=None, **whom)],
        [_step(rng, "deliver_channel_message_with_lock", message=message, **who)],
        [_step(rng, "deliver_pending", channels=None)],
        [_step(rng, "advance_clock", quanta=4), _step(rng, "expire_channel_wait", lease=None, **who)],
        [_step(rng, "claim_channel_message", lease=None), _step(rng, "cleanup_old_channel_messages")],
    )
    looks = ("get_channel_subscription", "get_pending_channel_messages_for_instance", "get_delivery_cursor")
    waiting = (
        _step(rng, "suspend", lease=Held(instance_id), waits=[wait]),
        _step(rng, "register_channel_receive_and_release_lock", lease=Held(instance_id), **who),
    )
    return [
        _step(rng, "subscribe_to_channel", instance_id=instance_id, channel=name, mode=mode, lease=None),
        *_taking(rng, instance_id),
        rng.choice(waiting),
        *(_step(rng, "publish_to_channel", channel=channel, lease=None) for _ in range(rng.choice((1, 1, 2)))),
        *rng.choice(ends),
        _step(rng, "update_delivery_cursor" if not rng.randrange(4) else rng.choice(looks), **who),
    ]


def _choosing(rng: Random) -> list[Step]:
    """An instance waits for several values on one channel; messages come, and it waits again for some of them."""
    instance_id, name = rng.choice(d.INSTANCE_IDS), rng.choice(("news", "jobs"))
    lease, message = Held(instance_id), ChannelMessage(id=0, channel=name, message_id="")
    waits: list[TimerWait | ChannelWait] = [
        ChannelWait(name, f"choice:{n}", after=d.maybe(d.spans(3 + 6 * n))(rng), where=d.asked(rng))
        for n in range(rng.choice((2, 3, 4)))
    ]
    sweep = _step(rng, "deliver_pending", channels=None, limit=0)
    take = {"instance_id": instance_id, "message": message, "lease": lease}
    rounds = (
        [sweep],
        [_step(rng, "advance_clock", quanta=4), _step(rng, "expire_channel_wait", **_who(instance_id, name))],
        [_step(rng, "deliver_channel_message", activity_id=None, where=None, **{**take, "lease": None})],
        [_step(rng, "suspend", lease=lease, waits=waits[1:]), sweep],
    )
    steps = [
        _step(rng, "subscribe_to_channel", mode=ChannelMode.BROADCAST, lease=None, **_who(instance_id, name)),
        *_taking(rng, instance_id),
        _step(rng, "suspend", lease=lease, waits=waits),
    ]
    for _ in range(rng.choice((1, 2, 3))):
        count = rng.choice((1, 2, 3))
        steps += [_step(rng, "publish_to_channel", channel=name, lease=None, data=d.valid(rng), binary=False)] * count
        steps += rng.choice(rounds)
        steps += _taking(rng, instance_id)
        steps.append(_step(rng, "deliver_channel_message", activity_id=d.activity_ids(rng), where=d.asked(rng), **take))
        steps.append(_step(rng, "suspend", lease=lease, waits=rng.sample(waits, rng.randint(1, len(waits)))))
    return [*steps, sweep, _step(rng, "get_pending_channel_messages_for_instance", **_who(instance_id, name))]


def _who(instance_id: str, channel: str) -> dict[str, str]:
    return {"instance_id": instance_id, "channel": channel}


def _sleeping(rng: Random) -> list[Step]:
    """An instance waits for a timer, which fires or not."""
    instance_id, timer_id = rng.choice(d.INSTANCE_IDS), d.timer_ids(rng)
    at, after = d.deadlines(d.spans(1, 5))(rng)
    wait, timer = TimerWait(timer_id, d.activity_ids(rng), at, after), TimerSubscription(instance_id, timer_id, at)
    lease = Held(instance_id)
    waiting = (
        _step(rng, "suspend", lease=lease, waits=[wait]),
        _step(
            rng,
            "register_timer_subscription_and_release_lock",
            subscription=timer,
            instance_id=instance_id,
            after=after,
            lease=lease,
        ),
    )
    return [
        *_taking(rng, instance_id),
        rng.choice(waiting),
        _step(rng, rng.choice(["next_due_at", "next_work_at"])),
        _step(rng, "advance_clock"),
        _step(rng, "find_expired_timers"),
        _step(rng, "fire_timer", instance_id=instance_id, timer_id=timer_id, lease=None),
    ]


def _relaying(rng: Random) -> list[Step]:
    """Events are sent, or not."""
    fates = (
        "mark_outbox_event_sent",
        "settle_outbox_events",
        "mark_outbox_event_failed",
        "increment_outbox_attempts",
        "back_off_by_default",
    )
    return [
        *(_step(rng, "add_outbox_event", lease=None) for _ in range(3)),
        _step(rng, "get_pending_outbox_events"),
        *(_step(rng, rng.choice(fates)) for _ in range(2)),
        _step(rng, "advance_clock"),
        _step(rng, rng.choice(("get_pending_outbox_events", "requeue_outbox_event", "cleanup_old_outbox_events"))),
    ]


def _running(rng: Random) -> list[Step]:
    """A run takes a few steps, and continues or ends."""
    instance_id = rng.choice(d.INSTANCE_IDS)
    lease = {"lease": Held(instance_id)}
    ends = (
        [_step(rng, "recur_instance", instance_id=instance_id, **lease), _step(rng, "get_archived_history")],
        [_step(rng, "complete_and_release", **lease)],
        [_step(rng, "cancel_instance", instance_id=instance_id, lease=None)],
    )
    return [
        *_taking(rng, instance_id),
        *(_step(rng, "append_history", event=d.event_of(rng, instance_id), **lease) for _ in range(2)),
        _step(rng, "add_compensation"),
        *rng.choice(ends),
        _step(rng, "advance_clock"),
        _step(rng, rng.choice(("delete_instances", "get_instance", "list_instances", "cleanup_stale_locks"))),
    ]


SCENES: dict[str, Callable[[Random], list[Step]]] = {
    "delivery": _receiving,
    "channels": _choosing,
    "waits": _sleeping,
    "outbox": _relaying,
    "history": _running,
    "instances": _running,
}
