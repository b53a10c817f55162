"""The values that operations are called with: few, so that they meet, and awkward where databases differ."""

from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from perdure.model.records import HistoryEvent, HistoryEventType
from perdure.model.states import WorkflowStatus
from tests.properties.memory import QUANTUM
from tests.properties.steps import At, Held, Seen

Values = SearchStrategy[Any]

INSTANCE_IDS = ("pay:1", "Pay:1", "ü 1")
CHANNELS = ("news", "News", "jobs", "news:pay:1")


def one(*values: object) -> Values:
    """One of some values; the first is the simplest."""
    return st.sampled_from(values)


def some(values: Values, most: int = 3) -> Values:
    """A few of them."""
    return st.lists(values, max_size=most)


def seconds(*quanta: int) -> Values:
    """A duration in seconds, of one of these numbers of quanta."""
    return one(*(n * QUANTUM.total_seconds() for n in quanta))


def spans(*quanta: int) -> Values:
    """A duration of one of these numbers of quanta."""
    return one(*(n * QUANTUM for n in quanta))


def maybe(values: Values) -> Values:
    """None, or one of them."""
    return st.none() | values


def mostly(usual: Values, unusual: Values) -> Values:
    """Seven times in eight the usual."""
    return st.integers(0, 7).flatmap(lambda n: unusual if n == 7 else usual)


instance_ids = mostly(one("pay:1", *INSTANCE_IDS), one("pay:1~1", "nobody"))
worker_ids = mostly(st.just("w1"), one("W1", "w2"))
activity_ids = one("step:1", "Step:1", "step:2", "workflow_failed")
channels = one("news", "news", *CHANNELS)
timer_ids = one("t1", "t2")
groups = one("g", "G")
sources = one("shop", "Shop")
event_ids = one("e1", "e2", "e3", "E1")
locks = one("sweep", "relay")
statuses = st.sampled_from(WorkflowStatus)

leases_sec = seconds(1, 3, 5)
ages = spans(1, 3)
absolute = st.builds(At, st.integers(-3, 6))
deadlines = st.builds(At, one(1, 3, 5, -1))
limits = mostly(one(0, 1, 2, 1000), one(-1, 1001))
some_limit = maybe(one(1, 2, 1000))

valid = one(b"{}", b'{"n": 1}', b'{"n": 1.0, "s": "\xc3\xa9 "}', b'{"n": "1", "d": {"e": true}}', b"null")
json = mostly(valid, one(b"not json", b""))
outputs = mostly(json, one(b"\xff", b"a\x00"))
binary = one(b"\x00\xff'\\", b"", b"plain")
wrong = one("x" * 300, " x", "x\x00")  # too long, or no name


back = mostly(st.just(0), st.just(1))
held = st.builds(Held, one("pay:1", *INSTANCE_IDS), back)


def lease_on(instance_id: str) -> Values:
    """No lease, the last one on the instance or one before, or somebody else's."""
    return maybe(mostly(st.builds(Held, st.just(instance_id), back), held))


@st.composite
def on_instance(draw: st.DrawFn, /, **arguments: Values) -> dict[str, Any]:
    """Arguments with an instance and, most often, a lease that belongs to it."""
    instance_id = draw(instance_ids)
    return {
        "instance_id": instance_id,
        **{name: draw(values) for name, values in arguments.items()},
        "lease": draw(lease_on(instance_id)),
    }


@st.composite
def events(draw: st.DrawFn, instance_id: str) -> HistoryEvent:
    """An event as the engine or anybody else would record it."""
    is_json = draw(st.booleans())
    return HistoryEvent(
        instance_id,
        draw(mostly(activity_ids, wrong)),
        draw(one(HistoryEventType.ACTIVITY_COMPLETED, HistoryEventType.ACTIVITY_FAILED)),
        event_data=draw(outputs) if is_json else None,
        event_data_binary=None if is_json else draw(binary),
        data_type=draw(mostly(st.just("json" if is_json else "binary"), one("json", "text"))),
        created_at=draw(maybe(absolute)),
    )


@st.composite
def fenced_events(draw: st.DrawFn) -> tuple[HistoryEvent, Held | None]:
    """An event and the lease it is recorded with."""
    instance_id = draw(instance_ids)
    return draw(events(instance_id)), draw(lease_on(instance_id))


def seen(kind: str) -> Values:
    """One of the last ids of a kind."""
    return st.builds(Seen, st.just(kind), st.integers(0, 3))
