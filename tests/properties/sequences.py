"""Sequences of steps, at random but about something: rooms that have to do with each other."""

from random import Random

from perdure.model.records import ChannelMode, ChannelWait, WorkflowInstance
from tests.properties import domains as d
from tests.properties.operations import FRESH, LOCKS, ROOMS, Operations, args
from tests.properties.steps import Held, Step

LONGEST = 40

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
    "advance_clock": ROOMS["clock"]["advance_clock"],
    "try_acquire_lock": LOCKS["try_acquire_lock"],
    "create_instance": args(
        instance=FRESH, worker_id=d.one("w1", None, "w2"), timeout_sec=d.leases_sec, source_code=d.one("")
    ),
    "begin_transaction": args(),
    "commit_transaction": args(),
    "rollback_transaction": args(),
}

# Operations without which others have nothing to do.
WEIGHTS = {
    "advance_clock": 3,
    "try_acquire_lock": 4,
    "append_history": 3,
    "add_outbox_event": 6,
    "get_pending_outbox_events": 4,
    "mark_outbox_event_sent": 2,
    "publish_to_channel": 5,
    "subscribe_to_channel": 3,
    "suspend": 4,
    "register_timer_subscription": 2,
    "fire_timer": 3,
    "deliver_channel_message": 3,
    "deliver_channel_message_with_lock": 3,
    "deliver_pending": 2,
    "expire_channel_wait": 2,
}

BORN = [
    WorkflowInstance("Pay:1", "order", b'{"n": 1}'),
    WorkflowInstance("pay:1", "refund"),
    WorkflowInstance("ü 1", "order"),
]


def sequence(rng: Random) -> list[Step]:
    """Up to forty steps in the rooms of a theme and another one."""
    names = {*rng.choice(THEMES), rng.choice(sorted(ROOMS))}
    rooms = [*(ROOMS[name] for name in sorted(names) for _ in range(2)), COMMON, COMMON]
    start = [
        Step("notify", {"loud": d.flags(rng)}),
        Step("create_instances", {"instances": BORN[: rng.choice((2, 3))], "worker_id": "w1", "timeout_sec": 300.0}),
    ]
    if "delivery" in names and rng.randrange(4):
        start += listeners(rng)
    return start + [_step(rng.choice(rooms), rng) for _ in range(rng.randint(5, LONGEST))]


def listeners(rng: Random) -> list[Step]:
    """Two subscribers, of which one waits."""
    mode = rng.choice(list(ChannelMode))
    subscribers = [{"instance_id": name, "channel": "news", "mode": mode} for name in d.INSTANCE_IDS[:2]]
    wait = ChannelWait("news:pay:1" if mode is ChannelMode.DIRECT else "news", "step:2", after=d.maybe(d.spans(3))(rng))
    return [
        *(Step("subscribe_to_channel", subscriber) for subscriber in subscribers),
        Step("suspend", {"lease": Held("pay:1"), "waits": [wait]}),
    ]


def _step(room: Operations, rng: Random) -> Step:
    (operation,) = rng.choices(list(room), [WEIGHTS.get(name, 1) for name in room])
    return Step(operation, room[operation](rng))
