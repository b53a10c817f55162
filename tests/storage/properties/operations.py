"""Every operation of every aggregate, with the arguments it is called with."""

from collections.abc import Mapping
from random import Random
from typing import Any

from perdure.model.records import (
    ChannelMessage,
    ChannelMode,
    ChannelWait,
    CompensationEntry,
    ListInstancesOptions,
    OutboxEvent,
    OutboxStatus,
    OutgoingMessage,
    ParentLink,
    TimerSubscription,
    TimerWait,
    WorkflowInstance,
)
from tests.storage.properties import values as d
from tests.storage.properties.steps import Held, Seen
from tests.storage.properties.values import Make

Operations = Mapping[str, Make]


def args(**makes: Make) -> Make:
    return d.build(dict, **makes)


INSTANCE = d.build(
    WorkflowInstance,
    instance_id=d.mostly(d.one(*d.INSTANCE_IDS), d.wrong),
    workflow_name=d.one("order", "Order", "refund"),
    input_data=d.outputs,
    framework=d.mostly(d.one("", "perdure"), d.one("python")),
    status=d.mostly(d.one("running"), d.statuses),
    output_data=d.maybe(d.json),
    current_activity_id=d.maybe(d.mostly(d.activity_ids, d.wrong)),
    source_hash=d.one("", "h1"),
    owner_service=d.one("", "svc"),
    continued_from=d.mostly(d.none, d.one("pay:1", "nobody", "x" * 300)),
    locked_by=d.mostly(d.none, d.mostly(d.worker_ids, d.wrong)),
    locked_at=d.mostly(d.none, d.absolute),
    lock_timeout_seconds=d.mostly(d.none, d.one(60, 300, -60, 10**12)),
    lock_expires_at=d.mostly(d.none, d.due),
    lock_token=d.mostly(d.one(0, 0, 7), d.one(2**63)),
    started_at=d.maybe(d.absolute),
    updated_at=d.mostly(d.none, d.absolute),
    headers=d.maybe(d.json),
)
FRESH = d.build(
    WorkflowInstance,
    instance_id=d.one(*d.INSTANCE_IDS),
    workflow_name=d.one("order", "refund"),
    input_data=d.json,
    started_at=d.maybe(d.absolute),
)
NEW = d.either(FRESH, INSTANCE)


def _ordered(rng: Random) -> list[WorkflowInstance]:
    """New instances in the order of their ids: their times may be equal or not."""
    return sorted(d.some(NEW)(rng), key=lambda instance: instance.instance_id)


_PLAIN = args(
    instance=NEW, worker_id=d.maybe(d.worker_ids), timeout_sec=d.leases_sec, source_code=d.one("def é(): ...")
)


def _creation(rng: Random) -> dict[str, Any]:
    """A new instance, sometimes with its first events and timers, and those of another one."""
    found: dict[str, Any] = _PLAIN(rng)
    if not rng.randrange(3):
        instance_id = d.mostly(d.one(found["instance"].instance_id), d.one("somebody"))(rng)
        found["events"] = [d.event_of(rng, instance_id) for _ in range(rng.randint(0, 2))]
        found["timers"] = [
            TimerWait(d.timer_ids(rng), d.activity_ids(rng), *d.deadlines(d.spans(0, 1, 5))(rng))
            for _ in range(rng.randint(0, 2))
        ]
    if not rng.randrange(4):
        lease = d.held(rng)
        compensation = d.maybe(
            d.build(
                CompensationEntry,
                instance_id=d.mostly(d.one(lease.instance_id), d.one("somebody")),
                activity_id=d.mostly(d.activity_ids, d.wrong),
                activity_name=d.one("undo"),
                args=d.json,
            )
        )
        found["parent"] = ParentLink(lease, d.channels(rng), compensation(rng))
    return found


INSTANCES: Operations = {
    "create_instance": _creation,
    "define_workflows": args(versions=d.one({}, {"order": "h1", "é": ""}, {"x" * 300: "h"}, {"order": "h" * 65})),
    "create_instances": args(instances=_ordered, worker_id=d.maybe(d.worker_ids), timeout_sec=d.leases_sec),
    "get_instance": args(instance_id=d.instance_ids),
    "get_instances": args(instance_ids=d.some(d.instance_ids, 4)),
    "update_instance_status": d.on_instance(status=d.statuses, error_msg=d.one("", "böse \\ '", "a\x00")),
    "update_instance_activity": d.on_instance(activity_id=d.mostly(d.activity_ids, d.wrong)),
    "update_instance_output": d.on_instance(output_data=d.outputs),
    "complete_and_release": args(lease=d.held, output_data=d.outputs),
    "complete_instances": args(items=d.some(d.both(d.held, d.outputs))),
    "cancel_instance": d.on_instance(reason=d.one("", "wégen \"'\\"), compensate=d.flags),
    "find_resumable_workflows": args(
        limit=d.limits, workflow_names=d.maybe(d.some(d.one("order", "Order", "refund", "none")))
    ),
    "delete_instances": args(older_than=d.ages, limit=d.limits),
    "delete_ended": args(instance_ids=d.some(d.instance_ids, 4)),
    "list_workflow_names": args(),
    "list_ended": args(limit=d.limits),
}

STUCK: Operations = {
    "back_off": args(lease=d.held, tries=d.one(1, 2, 3, -1), reason=d.one("no", "é\n"), pause_sec=d.leases_sec),
    "clear_stuck": args(instance_ids=d.some(d.instance_ids, 4)),
    "get_stuck": args(instance_ids=d.some(d.instance_ids, 4)),
    "list_stuck": args(limit=d.limits),
}


def _filters(rng: Random) -> dict[str, Any]:
    path = d.mostly(d.one("n", "s", "d.e", "d"), d.one("n..s", "n[0]"))
    return dict(d.some(d.both(path, d.one(1, "1", 1.0, True, None, "é ", "é")), 2)(rng))


LISTING: Operations = {
    "list_instances": args(
        options=d.build(
            ListInstancesOptions,
            limit=d.limits,
            page_token=d.either(d.none, d.none, d.one(Seen("page", 0, None), Seen("page", 1, None), "x||y")),
            status_filter=d.mostly(d.none, d.statuses),
            workflow_name_filter=d.mostly(d.none, d.one("RD", "o", "_", "")),
            instance_id_filter=d.mostly(d.none, d.one("PAY", "Ü", "~", "%")),
            started_after=d.mostly(d.none, d.absolute),
            started_before=d.mostly(d.none, d.absolute),
            input_filters=d.either(d.one({}), _filters),
            framework=d.one("perdure", None, "python"),
            workflow_name=d.mostly(d.none, d.one("order", "Order", "refund", "rd", "order ")),
            payloads=d.one(True, True, False),
        )
    ),
    "count_instances": args(
        options=d.build(
            ListInstancesOptions,
            status_filter=d.mostly(d.none, d.statuses),
            started_after=d.mostly(d.none, d.absolute),
            input_filters=d.either(d.one({}), _filters),
            framework=d.one("perdure", None, "python"),
            workflow_name=d.mostly(d.none, d.one("order", "Order")),
        ),
        limit=d.mostly(d.one(1000, 1, 2), d.one(-1)),
    ),
}


def _in_order(rng: Random) -> list[str]:
    """Instances in the order of their ids: their leases may end at the same time or not."""
    return sorted(d.some(d.instance_ids, 4)(rng))


LOCKS: Operations = {
    "try_acquire_lock": args(instance_id=d.instance_ids, worker_id=d.worker_ids, timeout_sec=d.leases_sec),
    "acquire_locks": args(instance_ids=_in_order, worker_id=d.worker_ids, timeout_sec=d.leases_sec),
    "claim_instances": args(
        instance_ids=_in_order, worker_id=d.worker_ids, timeout_sec=d.leases_sec, limit=d.mostly(d.one(4), d.one(-1))
    ),
    "release_lock": d.on_instance(worker_id=d.worker_ids),
    "refresh_lock": d.on_instance(worker_id=d.worker_ids, timeout_sec=d.leases_sec),
    "refresh_locks": args(leases=d.some(d.held), timeout_sec=d.leases_sec),
    "cleanup_stale_locks": args(timeout_sec=d.seconds(0, 2)),
}

HISTORY: Operations = {
    "append_history": lambda rng: dict(zip(("event", "lease"), d.fenced_events(rng), strict=True)),
    "append_histories": args(items=d.some(d.fenced_events, 4)),
    "append_and_complete": args(events=d.some(d.fenced_events, 4), completions=d.some(d.both(d.held, d.outputs))),
    "get_history_paginated": args(
        instance_id=d.instance_ids, after_id=d.either(d.one(0), d.seen("history")), limit=d.limits
    ),
    "get_history_count": args(instance_id=d.instance_ids),
    "get_last_event": args(
        instance_id=d.instance_ids, event_type=d.one("ActivityCompleted", "TimerExpired", "MessageTimeout", "x" * 101)
    ),
    "get_events": args(instance_ids=d.some(d.instance_ids, 4), activity_ids=d.some(d.activity_ids)),
    "iterate_history": args(instance_id=d.instance_ids, batch_size=d.one(1, 2, 1000)),
}


def _recurring(rng: Random) -> dict[str, Any]:
    lease = d.held(rng)
    instance_id = d.mostly(d.one(lease.instance_id), d.instance_ids)(rng)
    return {"instance_id": instance_id, "input_data": d.outputs(rng), "lease": lease}


ARCHIVE: Operations = {
    "archive_history": d.on_instance(),
    "get_archived_history": args(instance_id=d.instance_ids, limit=d.some_limit),
    "cleanup_instance_subscriptions": d.on_instance(),
    "recur_instance": _recurring,
}


def _compensation(rng: Random) -> dict[str, Any]:
    found = d.on_instance(
        activity_id=d.mostly(d.activity_ids, d.wrong),
        activity_name=d.one("undo", "Undo"),
        args=d.outputs,
        created_at=d.maybe(d.absolute),
    )(rng)
    lease = found.pop("lease")
    return {"entry": CompensationEntry(**found), "lease": lease}


COMPENSATIONS: Operations = {
    "add_compensation": _compensation,
    "get_compensations": args(instance_id=d.instance_ids, limit=d.some_limit),
}

GROUPS: Operations = {
    "join_group": d.on_instance(group_name=d.mostly(d.groups, d.wrong)),
    "leave_group": d.on_instance(group_name=d.groups),
    "leave_all_groups": d.on_instance(),
    "get_group_members": args(group_name=d.groups, limit=d.some_limit),
}


def _outbox_event(rng: Random) -> OutboxEvent:
    is_json = d.flags(rng)
    return OutboxEvent(
        d.mostly(d.event_ids, d.wrong)(rng),
        "paid",
        d.sources(rng),
        event_data=d.outputs(rng) if is_json else None,
        event_data_binary=None if is_json else d.binary(rng),
        data_type="json" if is_json else "binary",
        content_type=d.one("application/json", "text/plain")(rng),
        created_at=d.maybe(d.absolute)(rng),
        headers=d.maybe(d.json)(rng),
    )


RELAY_IDS = d.one("", "r1", "R1")
FAILURE = {"event_id": d.event_ids, "relay_id": d.maybe(RELAY_IDS)}
REASONS = d.one(None, "", "böse")

OUTBOX: Operations = {
    "add_outbox_event": args(event=_outbox_event, lease=d.mostly(d.none, d.held)),
    "get_pending_outbox_events": args(limit=d.limits, relay_id=RELAY_IDS, lease_sec=d.leases_sec),
    "mark_outbox_event_sent": args(event_id=d.event_ids),
    "settle_outbox_events": args(
        sent=d.some(d.event_ids), released=d.some(d.event_ids), relay_id=RELAY_IDS, pause=d.spans(0, 1, 3)
    ),
    "increment_outbox_attempts": args(**FAILURE, error=REASONS, back_off=d.spans(0, 1, 3)),
    "back_off_by_default": args(**FAILURE),
    "mark_outbox_event_failed": args(**FAILURE, error=REASONS),
    "requeue_outbox_event": args(event_id=d.event_ids),
    "list_outbox_events": args(
        status=d.maybe(d.one(*OutboxStatus, "nonsense")), limit=d.limits, after=d.mostly(d.none, d.event_ids)
    ),
    "cleanup_old_outbox_events": args(older_than=d.ages),
}


def _timer(rng: Random) -> dict[str, Any]:
    at, after = d.deadlines(d.spans(0, 1, 5))(rng)
    found = d.on_instance(timer_id=d.timer_ids, activity_id=d.maybe(d.activity_ids))(rng)
    lease = found.pop("lease")
    return {"subscription": TimerSubscription(expires_at=at, **found), "after": after, "lease": lease}


def _releasing_timer(rng: Random) -> dict[str, Any]:
    found = _timer(rng)
    instance_id = d.mostly(d.one(found["subscription"].instance_id), d.instance_ids)(rng)
    return {**found, "instance_id": instance_id, "worker_id": d.worker_ids(rng)}


TIMERS: Operations = {
    "register_timer_subscription": _timer,
    "register_timer_subscription_and_release_lock": _releasing_timer,
    "find_expired_timers": args(limit=d.limits),
    "remove_timer_subscription": d.on_instance(timer_id=d.timer_ids),
    "fire_timer": d.on_instance(timer_id=d.timer_ids),
    "fire_timers": args(timers=d.some(d.both(d.instance_ids, d.timer_ids), 4)),
}

KEYS = d.both(d.maybe(d.one("m1", "M1")), d.one("", "http"))


def _outgoing(rng: Random) -> dict[str, Any]:
    is_json, (message_id, source) = d.flags(rng), KEYS(rng)
    return {
        "channel": d.mostly(d.channels, d.wrong)(rng),
        "data": d.mostly(d.valid, d.outputs)(rng) if is_json else d.binary(rng),
        "metadata": d.maybe(d.mostly(d.valid, d.json))(rng),
        "message_id": message_id,
        "source": source,
        "binary": not is_json,
    }


def _batch(rng: Random) -> dict[str, Any]:
    """Messages in the order of their channels and with one key: the times of several may be equal or not."""
    message_id, source = KEYS(rng)
    found = [OutgoingMessage(**_outgoing(rng) | {"message_id": message_id, "source": source}) for _ in range(3)]
    found = sorted(found[rng.randrange(4) :], key=lambda message: message.channel)
    return {"messages": found, "lease": d.mostly(d.none, d.held)(rng)}


CHANNELS: Operations = {
    "publish_to_channel": lambda rng: {**_outgoing(rng), "lease": d.mostly(d.none, d.held)(rng)},
    "publish_messages": _batch,
    "subscribe_to_channel": d.on_instance(channel=d.channels, mode=d.one(*ChannelMode, *ChannelMode, "nonsense")),
    "unsubscribe_from_channel": d.on_instance(channel=d.channels),
    "get_channel_subscription": args(instance_id=d.instance_ids, channel=d.channels),
    "get_channel_mode": args(channel=d.channels),
    "clear_channel_waiting_state": d.on_instance(channel=d.channels),
    "get_pending_channel_messages": args(
        channel=d.channels, after_id=d.either(d.one(0), d.seen("message")), limit=d.limits
    ),
    "get_pending_channel_messages_for_instance": args(
        instance_id=d.instance_ids, channel=d.channels, limit=d.some_limit
    ),
    "claim_channel_message": d.on_instance(message_id=d.seen("message")),
    "delete_channel_message": args(message_id=d.seen("message"), lease=d.mostly(d.none, d.held)),
    "update_delivery_cursor": d.on_instance(channel=d.channels, last_message_id=d.seen("message")),
    "get_delivery_cursor": args(instance_id=d.instance_ids, channel=d.channels),
    "get_channel_waits": args(instance_id=d.instance_ids),
    "get_waits": args(instance_ids=d.some(d.instance_ids, 4)),
    "cleanup_old_channel_messages": args(
        older_than=d.ages, force=d.flags, limit=d.limits, ids_older_than=d.maybe(d.ages)
    ),
}


def waits(lease: Held, rng: Random) -> list[TimerWait | ChannelWait]:
    """Waits of one instance. No two that are registered in one commit time out at the same time."""
    found: list[TimerWait | ChannelWait] = []
    for n in range(rng.choice((1, 1, 2, 3, 4))):
        activity_id = d.activity_ids(rng)
        if rng.randrange(2):
            found.append(TimerWait(d.timer_ids(rng), activity_id, *d.deadlines(d.spans(0, 1, 5))(rng)))
        else:
            channel = d.channels(rng)
            own = 6 * d.INSTANCE_IDS.index(lease.instance_id) + ("", "news ", *d.CHANNELS).index(channel)
            at, after = d.maybe(d.deadlines(d.spans(3 + 2 * own + 200 * n)))(rng) or (None, None)
            subscribe = d.mostly(d.none, d.one(ChannelMode.BROADCAST, ChannelMode.COMPETING))(rng)
            found.append(ChannelWait(channel, activity_id, at, after, d.values(rng), subscribe))
    return found


def _suspension(rng: Random) -> tuple[Held, list[TimerWait | ChannelWait]]:
    lease = d.held(rng)
    return lease, waits(lease, rng)


def _receive(rng: Random) -> dict[str, Any]:
    at, after = d.deadlines(d.spans(0, 3, 7))(rng)
    found = d.on_instance(channel=d.channels, worker_id=d.worker_ids, activity_id=d.activity_ids)(rng)
    return {**found, "timeout_at": at, "after": after}


WAITS: Operations = {
    "suspend": lambda rng: dict(zip(("lease", "waits"), _suspension(rng), strict=True)),
    "suspend_instances": args(items=d.some(_suspension)),
    "register_channel_receive_and_release_lock": _receive,
    "next_due_at": args(),
    "next_work_at": args(),
}


def _delivery(rng: Random) -> dict[str, Any]:
    message = ChannelMessage(id=d.seen("message")(rng), channel=d.channels(rng), message_id="")
    found = {**d.on_instance()(rng), "message": message, "activity_id": d.mostly(d.none, d.activity_ids)(rng)}
    asked = d.either(d.none, d.values)(rng) if found["activity_id"] is None else d.values(rng)
    return {**found, "where": asked if found["activity_id"] or d.mostly(d.one(False), d.one(True))(rng) else None}


def _delivery_with_lock(rng: Random) -> dict[str, Any]:
    found = _delivery(rng)
    return {
        "instance_id": found["instance_id"],
        "channel": d.mostly(d.one(found["message"].channel), d.channels)(rng),
        "message": found["message"],
        "worker_id": d.worker_ids(rng),
        "lock_timeout_sec": d.leases_sec(rng),
    }


DELIVERY: Operations = {
    "get_channel_subscribers_waiting": args(channel=d.channels, limit=d.some_limit),
    "find_expired_channel_subscriptions": args(limit=d.limits),
    "deliver_channel_message": _delivery,
    "deliver_channel_message_with_lock": _delivery_with_lock,
    "deliver_pending": args(limit=d.limits, channels=d.maybe(d.some(d.channels))),
    "expire_channel_wait": d.on_instance(channel=d.channels),
    "expire_channel_waits": args(waits=d.some(d.both(d.instance_ids, d.channels), 4)),
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

CLOCK: Operations = {"advance_clock": args(quanta=d.one(2, 2, 4, 10, 10, -2, 11_520))}  # the last one is eight days

AGGREGATES: dict[str, Operations] = {
    "instances": INSTANCES,
    "listing": LISTING,
    "locks": LOCKS,
    "stuck": STUCK,
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
    "clock": CLOCK,
}
