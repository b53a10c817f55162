"""Every operation of every room, with the arguments it is called with."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from perdure.model.records import (
    ChannelMessage,
    ChannelMode,
    ChannelWait,
    CompensationEntry,
    ListInstancesOptions,
    OutboxEvent,
    OutboxStatus,
    OutgoingMessage,
    TimerSubscription,
    TimerWait,
    WorkflowInstance,
)
from tests.properties import domains as d
from tests.properties.steps import Held, Seen, Step

Operations = Mapping[str, SearchStrategy[dict[str, Any]]]


def args(**arguments: d.Values) -> SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(arguments)


INSTANCE = st.builds(
    WorkflowInstance,
    instance_id=d.mostly(d.one(*d.INSTANCE_IDS), d.wrong),
    workflow_name=d.one("order", "Order", "refund"),
    input_data=d.outputs,
    framework=d.one("", "perdure", "", "python"),
    status=d.mostly(st.just("running"), d.statuses),
    output_data=d.maybe(d.json),
    current_activity_id=d.maybe(d.activity_ids),
    source_hash=d.one("", "h1"),
    owner_service=d.one("", "svc"),
    continued_from=d.mostly(st.none(), d.one("pay:1", "nobody")),
    locked_by=d.mostly(st.none(), d.worker_ids),
    locked_at=d.mostly(st.none(), d.absolute),
    lock_timeout_seconds=d.mostly(st.none(), d.one(60, 300)),
    lock_expires_at=d.mostly(st.none(), d.deadlines),
    lock_token=d.one(0, 0, 7),
    started_at=d.maybe(d.absolute),
    updated_at=d.mostly(st.none(), d.absolute),
)
FRESH = st.builds(WorkflowInstance, d.one(*d.INSTANCE_IDS), d.one("order", "refund"), d.json)

INSTANCES: Operations = {
    "create_instance": args(
        instance=INSTANCE | FRESH,
        worker_id=d.maybe(d.worker_ids),
        timeout_sec=d.leases_sec,
        source_code=d.one("", "def é(): ..."),
    ),
    "create_instances": args(
        # in the order of their ids: their times may be equal or not
        instances=d.some(INSTANCE | FRESH).map(lambda found: sorted(found, key=lambda item: item.instance_id)),
        worker_id=d.maybe(d.worker_ids),
        timeout_sec=d.leases_sec,
    ),
    "get_instance": args(instance_id=d.instance_ids),
    "update_instance_status": d.on_instance(status=d.statuses, error_msg=d.one("", "böse \\ '", "a\x00")),
    "update_instance_activity": d.on_instance(activity_id=d.mostly(d.activity_ids, d.wrong)),
    "update_instance_output": d.on_instance(output_data=d.outputs),
    "complete_and_release": args(lease=d.held, output_data=d.outputs),
    "complete_instances": args(items=d.some(st.tuples(d.held, d.outputs))),
    "cancel_instance": d.on_instance(reason=d.one("", "wégen \"'\\"), compensate=st.booleans()),
    "find_resumable_workflows": args(
        limit=d.limits, workflow_names=d.maybe(d.some(d.one("order", "Order", "refund", "none")))
    ),
    "delete_instances": args(older_than=d.ages, limit=d.limits),
}

FILTERS = st.dictionaries(
    d.mostly(d.one("n", "s", "d.e", "d"), d.one("n..s", "n[0]")), d.one(1, "1", 1.0, True, None, "é ", "é"), max_size=2
)

LISTING: Operations = {
    "list_instances": args(
        options=st.builds(
            ListInstancesOptions,
            limit=d.limits,
            page_token=d.mostly(st.none(), d.one(Seen("page", 0, "none"), Seen("page", 1, "none"), "x||y")),
            status_filter=d.mostly(st.none(), d.statuses),
            workflow_name_filter=d.mostly(st.none(), d.one("RD", "o", "_", "")),
            instance_id_filter=d.mostly(st.none(), d.one("PAY", "Ü", "~", "%")),
            started_after=d.mostly(st.none(), d.absolute),
            started_before=d.mostly(st.none(), d.absolute),
            input_filters=d.mostly(st.just({}), FILTERS),
            framework=d.one("perdure", None, "python"),
        )
    )
}

LOCKS: Operations = {
    "try_acquire_lock": args(instance_id=d.instance_ids, worker_id=d.worker_ids, timeout_sec=d.leases_sec),
    "release_lock": d.on_instance(worker_id=d.worker_ids),
    "refresh_lock": d.on_instance(worker_id=d.worker_ids, timeout_sec=d.leases_sec),
    "refresh_locks": args(leases=d.some(d.held), timeout_sec=d.leases_sec),
    "cleanup_stale_locks": args(timeout_sec=d.seconds(0, 2)),
}

HISTORY: Operations = {
    "append_history": d.fenced_events().map(lambda item: {"event": item[0], "lease": item[1]}),
    "append_histories": args(items=d.some(d.fenced_events(), 4)),
    "get_history_paginated": args(instance_id=d.instance_ids, after_id=st.just(0) | d.seen("history"), limit=d.limits),
    "get_history_count": args(instance_id=d.instance_ids),
    "iterate_history": args(instance_id=d.instance_ids, batch_size=d.one(1, 2, 1000)),
}

ARCHIVE: Operations = {
    "archive_history": d.on_instance(),
    "get_archived_history": args(instance_id=d.instance_ids, limit=d.some_limit),
    "cleanup_instance_subscriptions": d.on_instance(),
    "recur_instance": st.tuples(d.held, d.outputs, d.mostly(st.none(), d.instance_ids)).map(
        lambda found: {"instance_id": found[2] or found[0].instance_id, "input_data": found[1], "lease": found[0]}
    ),
}


@st.composite
def compensations(draw: st.DrawFn) -> dict[str, Any]:
    instance_id = draw(d.instance_ids)
    entry = CompensationEntry(
        instance_id,
        draw(d.mostly(d.activity_ids, d.wrong)),
        draw(d.one("undo", "Undo")),
        draw(d.outputs),
        created_at=draw(d.maybe(d.absolute)),
    )
    return {"entry": entry, "lease": draw(d.lease_on(instance_id))}


COMPENSATIONS: Operations = {
    "add_compensation": compensations(),
    "get_compensations": args(instance_id=d.instance_ids, limit=d.some_limit),
}

GROUPS: Operations = {
    "join_group": d.on_instance(group_name=d.mostly(d.groups, d.wrong)),
    "leave_group": d.on_instance(group_name=d.groups),
    "leave_all_groups": d.on_instance(),
    "get_group_members": args(group_name=d.groups, limit=d.some_limit),
}


@st.composite
def outbox_events(draw: st.DrawFn) -> OutboxEvent:
    is_json = draw(st.booleans())
    return OutboxEvent(
        draw(d.mostly(d.event_ids, d.wrong)),
        "paid",
        draw(d.sources),
        event_data=draw(d.outputs) if is_json else None,
        event_data_binary=None if is_json else draw(d.binary),
        data_type="json" if is_json else "binary",
        content_type=draw(d.one("application/json", "text/plain")),
        created_at=draw(d.maybe(d.absolute)),
    )


RELAY_IDS = d.one("", "r1", "R1")

OUTBOX: Operations = {
    "add_outbox_event": args(event=outbox_events(), lease=d.mostly(st.none(), d.held)),
    "get_pending_outbox_events": args(limit=d.limits, relay_id=RELAY_IDS, lease_sec=d.leases_sec),
    "mark_outbox_event_sent": args(event_id=d.event_ids),
    "increment_outbox_attempts": args(
        event_id=d.event_ids,
        error=d.maybe(d.one("", "böse")),
        back_off=d.spans(0, 1, 3),
        relay_id=d.maybe(RELAY_IDS),
    ),
    "back_off_by_default": args(event_id=d.event_ids, relay_id=d.maybe(RELAY_IDS)),
    "mark_outbox_event_failed": args(
        event_id=d.event_ids, error=d.maybe(d.one("", "böse")), relay_id=d.maybe(RELAY_IDS)
    ),
    "requeue_outbox_event": args(event_id=d.event_ids),
    "list_outbox_events": args(
        status=d.maybe(st.sampled_from(OutboxStatus)), limit=d.limits, after=d.mostly(st.none(), d.event_ids)
    ),
    "cleanup_old_outbox_events": args(older_than=d.ages),
}


def deadlines(spans: d.Values) -> d.Values:
    """A time, a while, or what is refused: both or none."""
    return (
        st.tuples(d.deadlines, st.none())
        | st.tuples(st.none(), spans)
        | st.tuples(d.maybe(d.deadlines), d.maybe(spans))
    )


@st.composite
def timers(draw: st.DrawFn, releasing: bool) -> dict[str, Any]:
    instance_id = draw(d.instance_ids)
    at, after = draw(deadlines(d.spans(0, 1, 5)))
    timer = TimerSubscription(instance_id, draw(d.timer_ids), at, draw(d.maybe(d.activity_ids)))
    found: dict[str, Any] = {"subscription": timer, "after": after, "lease": draw(d.lease_on(instance_id))}
    if releasing:
        found["instance_id"] = draw(d.mostly(st.just(instance_id), d.instance_ids))
        found["worker_id"] = draw(d.worker_ids)
    return found


TIMERS: Operations = {
    "register_timer_subscription": timers(releasing=False),
    "register_timer_subscription_and_release_lock": timers(releasing=True),
    "find_expired_timers": args(limit=d.limits),
    "remove_timer_subscription": d.on_instance(timer_id=d.timer_ids),
    "fire_timer": d.on_instance(timer_id=d.timer_ids),
}

OUTGOING = {
    "channel": d.mostly(d.channels, d.wrong),
    "metadata": d.maybe(d.mostly(d.valid, d.json)),
    "message_id": d.maybe(d.one("m1", "M1")),
    "source": d.one("", "http"),
}
PAYLOADS = d.mostly(
    st.tuples(st.just(False), d.valid) | st.tuples(st.just(True), d.binary), st.tuples(st.just(False), d.outputs)
)


@st.composite
def outgoing(draw: st.DrawFn) -> dict[str, Any]:
    binary, data = draw(PAYLOADS)
    return {**{name: draw(values) for name, values in OUTGOING.items()}, "data": data, "binary": binary}


@st.composite
def batches(draw: st.DrawFn) -> dict[str, Any]:
    """Messages in the order of their channels and with one key: the times of several may be equal or not."""
    key = {"message_id": draw(OUTGOING["message_id"]), "source": draw(OUTGOING["source"])}
    messages = [OutgoingMessage(**(message | key)) for message in draw(d.some(outgoing()))]
    return {
        "messages": sorted(messages, key=lambda message: message.channel),
        "lease": draw(d.mostly(st.none(), d.held)),
    }


CHANNELS: Operations = {
    "publish_to_channel": st.tuples(outgoing(), d.mostly(st.none(), d.held)).map(
        lambda found: found[0] | {"lease": found[1]}
    ),
    "publish_messages": batches(),
    "subscribe_to_channel": d.on_instance(channel=d.channels, mode=st.sampled_from(ChannelMode)),
    "unsubscribe_from_channel": d.on_instance(channel=d.channels),
    "get_channel_subscription": args(instance_id=d.instance_ids, channel=d.channels),
    "get_channel_mode": args(channel=d.channels),
    "clear_channel_waiting_state": d.on_instance(channel=d.channels),
    "get_pending_channel_messages": args(channel=d.channels, after_id=st.just(0) | d.seen("message"), limit=d.limits),
    "get_pending_channel_messages_for_instance": args(
        instance_id=d.instance_ids, channel=d.channels, limit=d.some_limit
    ),
    "claim_channel_message": d.on_instance(message_id=d.seen("message")),
    "delete_channel_message": args(message_id=d.seen("message"), lease=d.mostly(st.none(), d.held)),
    "update_delivery_cursor": d.on_instance(channel=d.channels, last_message_id=d.seen("message")),
    "get_delivery_cursor": args(instance_id=d.instance_ids, channel=d.channels),
    "cleanup_old_channel_messages": args(older_than=d.ages, force=st.booleans(), limit=d.limits),
}


@st.composite
def waits(draw: st.DrawFn, lease: Held) -> list[TimerWait | ChannelWait]:
    """Waits of one instance. No two that are registered in one commit have the same time-out by the clock."""
    found: list[TimerWait | ChannelWait] = []
    for _ in range(draw(d.one(1, 2, 1, 3))):
        activity_id = draw(d.activity_ids)
        if draw(st.booleans()):
            at, after = draw(deadlines(d.spans(0, 1, 5)))
            found.append(TimerWait(draw(d.timer_ids), activity_id, at, after))
        else:
            channel = draw(d.channels)
            own = 4 * d.INSTANCE_IDS.index(lease.instance_id) + d.CHANNELS.index(channel)
            at, after = draw(deadlines(d.spans(3 + 2 * own)))
            found.append(ChannelWait(channel, activity_id, at, after))
    return found


SUSPENSIONS = d.held.flatmap(lambda lease: st.tuples(st.just(lease), waits(lease)))

WAITS: Operations = {
    "suspend": SUSPENSIONS.map(lambda found: {"lease": found[0], "waits": found[1]}),
    "suspend_instances": args(items=d.some(SUSPENSIONS)),
    "register_channel_receive_and_release_lock": st.tuples(
        d.on_instance(channel=d.channels, worker_id=d.worker_ids, activity_id=d.activity_ids),
        deadlines(d.spans(0, 3, 7)),
    ).map(lambda found: found[0] | {"timeout_at": found[1][0], "after": found[1][1]}),
    "next_due_at": args(),
}


@st.composite
def deliveries(draw: st.DrawFn, locking: bool) -> dict[str, Any]:
    channel, found = draw(d.channels), draw(d.on_instance())
    message = ChannelMessage(id=draw(d.seen("message")), channel=channel, message_id="")
    if not locking:
        return {**found, "message": message, "activity_id": draw(d.mostly(st.none(), d.activity_ids))}
    return {
        "instance_id": found["instance_id"],
        "channel": draw(d.mostly(st.just(channel), d.channels)),
        "message": message,
        "worker_id": draw(d.worker_ids),
        "lock_timeout_sec": draw(d.leases_sec),
    }


DELIVERY: Operations = {
    "get_channel_subscribers_waiting": args(channel=d.channels, limit=d.some_limit),
    "find_expired_channel_subscriptions": args(limit=d.limits),
    "deliver_channel_message": deliveries(locking=False),
    "deliver_channel_message_with_lock": deliveries(locking=True),
    "deliver_pending": args(limit=d.limits, channels=d.maybe(d.some(d.channels))),
    "expire_channel_wait": d.on_instance(channel=d.channels),
}

SYSTEM_LOCKS: Operations = {
    "try_acquire_system_lock": args(lock_name=d.locks, worker_id=d.worker_ids, timeout_sec=d.leases_sec),
    "release_system_lock": args(lock_name=d.locks, worker_id=d.worker_ids),
    "cleanup_expired_system_locks": args(),
}

WORKERS: Operations = {
    "beat_worker": args(worker_id=d.worker_ids, info=d.maybe(d.outputs), gone=d.one(False, False, True)),
    "list_workers": args(alive_within=d.maybe(d.ages), limit=d.some_limit),
}

# What the rest of the family leaves behind, among others.
OWN_WRITES = (
    "UPDATE workflow_instances SET owner_service = 'own', updated_at = updated_at WHERE status = 'running'",
    "UPDATE workflow_instances SET framework = 'python', updated_at = updated_at WHERE instance_id = 'Pay:1'",
    "UPDATE channel_messages SET framework = NULL",
    "UPDATE channel_subscriptions SET framework = NULL, cursor_message_id = NULL",
    "UPDATE outbox_events SET sequence = NULL WHERE event_id = 'e1'",
    "DELETE FROM system_locks",
)

TRANSACTIONS: Operations = {
    "begin_transaction": args(),
    "commit_transaction": args(),
    "rollback_transaction": args(),
    "in_transaction": args(),
    "call_after_commit": args(name=d.one("first", "second")),
    "own_sql": args(query=d.one(*(f"SELECT count(*) FROM {table}" for table in ("workflow_history", "outbox_events")))),
    "own_write": args(statement=d.one(*OWN_WRITES)),
}

ROOMS: dict[str, Operations] = {
    "instances": INSTANCES,
    "listing": LISTING,
    "locks": LOCKS,
    "history": HISTORY,
    "archive": ARCHIVE,
    "timers": TIMERS,
    "channels": CHANNELS,
    "waits": WAITS,
    "delivery": DELIVERY,
    "compensations": COMPENSATIONS,
    "groups": GROUPS,
    "outbox": OUTBOX,
    "system_locks": SYSTEM_LOCKS,
    "workers": WORKERS,
    "transactions": TRANSACTIONS,
}

# What makes the other operations meaningful, whichever rooms a sequence is about.
COMMON: Operations = {
    "advance_clock": args(quanta=d.one(2, 4, 10, -2, 11_520)),  # the last one is eight days
    "try_acquire_lock": LOCKS["try_acquire_lock"],
    "begin_transaction": args(),
    "commit_transaction": args(),
    "rollback_transaction": args(),
    "create_instance": args(
        instance=FRESH, worker_id=d.one("w1", None, "w2"), timeout_sec=d.leases_sec, source_code=st.just("")
    ),
}

# Rooms that have to do with each other.
THEMES = (
    ("instances", "locks", "history"),
    ("instances", "listing", "archive"),
    ("channels", "waits", "delivery"),
    ("channels", "waits", "delivery"),
    ("timers", "waits", "instances"),
    ("history", "archive", "compensations"),
    ("outbox", "transactions"),
    ("groups", "workers", "system_locks"),
)

# Operations without which others have nothing to do.
WEIGHTS = {
    "advance_clock": 3,
    "try_acquire_lock": 4,
    "append_history": 3,
    "add_outbox_event": 6,
    "get_pending_outbox_events": 5,
    "mark_outbox_event_sent": 2,
    "publish_to_channel": 5,
    "subscribe_to_channel": 3,
    "suspend": 4,
    "register_timer_subscription": 2,
    "fire_timer": 3,
    "deliver_channel_message": 3,
    "deliver_channel_message_with_lock": 3,
    "deliver_pending": 2,
    "expire_channel_wait": 3,
}

BORN = [
    WorkflowInstance("Pay:1", "order", b'{"n": 1}'),
    WorkflowInstance("pay:1", "refund"),
    WorkflowInstance("ü 1", "order"),
]


@st.composite
def sequences(draw: st.DrawFn) -> list[Step]:
    """Some twenty-five steps in a few rooms."""
    names = {*draw(st.sampled_from(THEMES)), draw(st.sampled_from(sorted(ROOMS)))}
    born = {"instances": BORN[: draw(d.one(2, 3))], "worker_id": "w1", "timeout_sec": 300.0}
    start = [Step("notify", {"loud": draw(st.booleans())}), Step("create_instances", born)]
    if "delivery" in names and draw(d.one(True, True, False)):
        start += draw(listeners())
    steps = one_step([*(ROOMS[name] for name in sorted(names) for _ in range(2)), COMMON, COMMON])
    parts = draw(st.lists(st.lists(steps, max_size=10), max_size=12))  # a plain list would be of five
    return [*start, *itertools.chain(*parts)]


@st.composite
def listeners(draw: st.DrawFn) -> list[Step]:
    """Two subscribers, of which one waits."""
    mode, channel = draw(st.sampled_from(ChannelMode)), "news"
    subscribers = [
        Step("subscribe_to_channel", {"instance_id": name, "channel": channel, "mode": mode})
        for name in d.INSTANCE_IDS[:2]
    ]
    if mode is ChannelMode.DIRECT:
        channel = "news:pay:1"
    wait = ChannelWait(channel, "step:2", after=draw(d.maybe(d.spans(3))))
    return [*subscribers, Step("suspend", {"lease": Held("pay:1"), "waits": [wait]})]


@st.composite
def one_step(draw: st.DrawFn, rooms: Sequence[Operations]) -> Step:
    room = rooms[draw(st.integers(0, len(rooms) - 1))]
    operation = draw(st.sampled_from([name for name in room for _ in range(WEIGHTS.get(name, 1))]))
    return Step(operation, draw(room[operation]))
