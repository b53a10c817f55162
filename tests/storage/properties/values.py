"""The values that operations are called with: few, so that they meet, and awkward where databases differ.

Values are made by functions of a generator of random numbers. Hypothesis provides its seed: its own strategies would
make five near copies of every sequence.
"""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

from perdure.model.records import HistoryEvent, HistoryEventType
from perdure.model.states import WorkflowStatus
from tests.storage.properties.answers import QUANTUM
from tests.storage.properties.steps import At, Held, Seen

Make = Callable[[Random], Any]

INSTANCE_IDS = ("pay:1", "Pay:1", "ü 1")
CHANNELS = ("news", "News", "jobs", "news:pay:1")


def one(*values: object) -> Make:
    """One of some values."""
    return lambda rng: rng.choice(values)


def some(make: Make, most: int = 3) -> Make:
    """A few."""
    return lambda rng: [make(rng) for _ in range(rng.randint(0, most))]


def maybe(make: Make) -> Make:
    """None, or one."""
    return lambda rng: make(rng) if rng.randrange(2) else None


def mostly(usual: Make, unusual: Make) -> Make:
    """Seven times in eight the usual."""
    return lambda rng: (usual if rng.randrange(8) else unusual)(rng)


def either(*makes: Make) -> Make:
    """One or the other."""
    return lambda rng: rng.choice(makes)(rng)


def both(*makes: Make) -> Make:
    """A tuple with one of each."""
    return lambda rng: tuple(make(rng) for make in makes)


def build(kind: Callable[..., Any], /, **makes: Make) -> Make:
    """A record."""
    return lambda rng: kind(**{name: make(rng) for name, make in makes.items()})


def seconds(*quanta: int) -> Make:
    """A duration in seconds, of one of these numbers of quanta."""
    return one(*(n * QUANTUM.total_seconds() for n in quanta))


def spans(*quanta: int) -> Make:
    """A duration of one of these numbers of quanta."""
    return one(*(n * QUANTUM for n in quanta))


none = one(None)
flags = one(False, True)

instance_ids = mostly(one("pay:1", *INSTANCE_IDS), one("pay:1~1", "nobody", "pay:1 ", ""))
worker_ids = mostly(one("w1"), one("W1", "w2", "w2", "w1 "))
activity_ids = one("step:1", "Step:1", "step:2", "workflow_failed")
channels = mostly(one("news", "news", *CHANNELS), mostly(one(*CHANNELS), one("news ", "")))
timer_ids = mostly(one("t1", "t2"), one("t1", "t1 "))
groups = mostly(one("g", "G"), one("g", "g "))
sources = one("shop", "Shop")
event_ids = mostly(one("e1", "e2", "e3", "E1"), one("e1", "e1 "))
locks = mostly(one("sweep", "relay"), one("sweep", "sweep "))
statuses = one(*WorkflowStatus, "nonsense")

leases_sec = mostly(seconds(1, 3, 5), mostly(seconds(1, 3, 5), one(0, -1, float("nan"), 10**12)))
ages = mostly(spans(1, 3), one(timedelta(seconds=-1), timedelta.max))
absolute = mostly(build(At, quanta=one(*range(-3, 7))), one(datetime(9999, 12, 31, 23, 59, tzinfo=UTC)))
due = build(At, quanta=one(1, 3, 5, -1))
limits = mostly(one(0, 1, 2, 1000), one(-1, 1001))
some_limit = maybe(one(1, 2, 1000))

valid = one(b"{}", b'{"n": 1}', b'{"n": 1.0, "s": "\xc3\xa9 "}', b'{"n": "1", "d": {"e": true}}', b"null")
_values = (
    {"n": 1}, {"n": 1.0}, {"n": "1"}, {"d.e": True}, {"d.e": 1}, {"n": 1, "s": "é "}, {"d": {"e": True}}, {"n": None},
)  # fmt: skip
asked = one(None, *_values)
values = mostly(maybe(one(*_values)), one({}, {"n..s": 1}, {"n": b"1"}, {"n": float("nan")}))  # what a wait asks for
json = mostly(valid, one(b"not json", b""))
outputs = mostly(json, one(b"\xff", b"a\x00"))
binary = one(b"\x00\xff'\\", b"", b"plain")
wrong = one("x" * 300, " x", "x\x00")  # too long, or no name

back = mostly(one(0), one(1))
held = build(Held, instance_id=one("pay:1", *INSTANCE_IDS), back=back)


def lease_on(instance_id: str) -> Make:
    """No lease, the last one on the instance or one before, or that of another worker."""
    return maybe(mostly(build(Held, instance_id=one(instance_id), back=back), held))


def on_instance(**makes: Make) -> Make:
    """Arguments with an instance and, most often, a lease that belongs to it."""

    def make(rng: Random) -> dict[str, Any]:
        instance_id = instance_ids(rng)
        found = {name: make(rng) for name, make in makes.items()}
        return {"instance_id": instance_id, **found, "lease": lease_on(instance_id)(rng)}

    return make


def deadlines(while_: Make) -> Make:
    """A time and a while, of which one is given, or what is refused: both or none."""
    refused = either(both(maybe(due), maybe(while_)), both(none, one(timedelta.max)))
    return either(both(due, none), both(none, while_), both(none, while_), refused)


def event_of(rng: Random, instance_id: str) -> HistoryEvent:
    """An event, as the engine or another program would record it."""
    is_json = flags(rng)
    return HistoryEvent(
        instance_id,
        mostly(activity_ids, wrong)(rng),
        one(HistoryEventType.ACTIVITY_COMPLETED, HistoryEventType.ACTIVITY_FAILED)(rng),
        event_data=outputs(rng) if is_json else None,
        event_data_binary=None if is_json else binary(rng),
        data_type=mostly(one("json" if is_json else "binary"), one("json", "text"))(rng),
        created_at=maybe(absolute)(rng),
    )


def fenced_events(rng: Random) -> tuple[HistoryEvent, Held | None]:
    """An event and the lease to record it with."""
    instance_id = instance_ids(rng)
    return event_of(rng, instance_id), lease_on(instance_id)(rng)


def seen(kind: str) -> Make:
    """One of the last ids of a kind, or an invalid id."""
    return mostly(_seen(kind), one(-1, 2**63))


def _seen(kind: str) -> Make:
    return build(Seen, kind=one(kind), n=one(0, 0, 1, 2, 3))
