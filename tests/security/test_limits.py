"""Every limit on every database: a value at the limit is stored and read back, one beyond it is refused.

Names are made of characters of four bytes, which fill a column and its index as much as any name can. The largest
inputs, events and messages are in the conformance suite.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from perdure import activity, workflow
from perdure.errors import LimitError
from perdure.model.limits import LEASE_MAX_SEC, SPAN_MAX
from perdure.model.records import (
    ChannelMode,
    CompensationEntry,
    HistoryEvent,
    ListInstancesOptions,
    OutboxEvent,
    TimerSubscription,
    WorkflowInstance,
)
from perdure.model.states import WorkflowStatus
from perdure.storage.migrations import tables
from perdure.storage.stores import SQLStorage
from perdure.testing.conformance.tools import leased, new

MIB = 1024 * 1024
ID, NAME, TYPE = "🦋" * 200, "🦋" * 255, "🦋" * 100
LAST = datetime.max.replace(tzinfo=UTC)
FIRST = datetime(1000, 1, 1, tzinfo=UTC)

JSON = b'"' + "é".encode() * (4 * MIB - 1) + b'"'
BINARY = bytes(range(256)) * (8 * MIB // 256)


async def rows(storage: SQLStorage) -> dict[str, int]:
    """How many rows each table has."""
    names = list(tables(storage._backend.driver.name))
    return {name: await storage.db().fetchval(f"SELECT COUNT(*) FROM {name}") for name in names}


async def refused(storage: SQLStorage, calls: Sequence[Callable[[], Awaitable[Any]]]) -> None:
    """Each call is refused, and no table has a row more or less for it."""
    before = await rows(storage)
    for n, call in enumerate(calls):
        with pytest.raises(LimitError):
            await call()
            raise AssertionError(f"call {n} was accepted")
    assert await rows(storage) == before


async def test_limits_of_instances(storage: SQLStorage) -> None:
    full = WorkflowInstance(
        ID,
        NAME,
        source_hash="h" * 64,
        owner_service=NAME,
        lock_timeout_seconds=LEASE_MAX_SEC,
        lock_token=2**62 - 1,
    )
    lease = await storage.create_instance(full, worker_id=NAME, timeout_sec=LEASE_MAX_SEC, source_code="#" * 8 * MIB)
    assert lease is not None
    assert (lease.worker_id, lease.token) == (NAME, 2**62)
    await storage.update_instance_activity(ID, NAME, lease=lease)
    found = await storage.get_instance(ID)
    assert found is not None
    assert (found.workflow_name, found.owner_service, found.source_hash) == (NAME, NAME, "h" * 64)
    assert (found.locked_by, found.lock_token, found.lock_timeout_seconds) == (NAME, 2**62, LEASE_MAX_SEC)
    assert found.current_activity_id == NAME
    assert found.lock_expires_at is not None
    assert found.locked_at is not None
    assert found.lock_expires_at - found.locked_at == timedelta(seconds=LEASE_MAX_SEC)
    one = WorkflowInstance("i", "wf")
    beyond = [
        replace(one, instance_id=ID + "x"),
        replace(one, workflow_name=NAME + "x"),
        replace(one, owner_service=NAME + "x"),
        replace(one, source_hash="h" * 65),
        replace(one, input_data=JSON + b" "),
        replace(one, output_data=JSON + b" "),
        replace(one, lock_timeout_seconds=LEASE_MAX_SEC + 1),
        replace(one, lock_token=2**62 + 1),
    ]
    await refused(storage, [lambda it=it: storage.create_instance(it) for it in beyond])  # type: ignore[misc]
    await refused(
        storage,
        [
            lambda: storage.create_instance(one, worker_id=NAME + "x"),
            lambda: storage.create_instance(one, worker_id="w", timeout_sec=LEASE_MAX_SEC + 0.001),
            lambda: storage.create_instance(replace(one, source_hash="h"), source_code="#" * (8 * MIB + 1)),
            lambda: storage.create_instance(replace(one, lock_token=2**62), worker_id="w"),
            lambda: storage.update_instance_activity(ID, NAME + "x", lease=lease),
            lambda: storage.update_instance_output(ID, JSON + b" ", lease=lease),
            lambda: storage.complete_and_release(lease, JSON + b" "),
        ],
    )
    assert await storage.get_instance(ID) == found
    await storage.complete_and_release(lease, JSON)
    done = await storage.get_instance(ID)
    assert done is not None
    assert [done.output_data == JSON, done.lock_token > 2**62] == [True, True]


async def test_limits_of_history_and_compensations(storage: SQLStorage) -> None:
    lease = await leased(storage, ID)
    text = HistoryEvent(ID, NAME, TYPE, b"1")
    await storage.append_history(text, lease=lease)
    await storage.append_history(HistoryEvent(ID, "b", TYPE, None, b"1", "binary"), lease=lease)
    await storage.add_compensation(CompensationEntry(ID, NAME, NAME, JSON), lease=lease)
    events, _ = await storage.get_history_paginated(ID)
    assert [(event.activity_id, event.event_type) for event in events] == [(NAME, TYPE), ("b", TYPE)]
    assert (await storage.get_last_event(ID, TYPE)) == events[1]
    (entry,) = await storage.get_compensations(ID)
    assert (entry.activity_id, entry.activity_name, entry.args == JSON) == (NAME, NAME, True)
    undo = CompensationEntry(ID, "s", "undo")
    await refused(
        storage,
        [
            lambda: storage.append_history(replace(text, activity_id=NAME + "x"), lease=lease),
            lambda: storage.append_history(replace(text, activity_id="x", event_type=TYPE + "x"), lease=lease),
            lambda: storage.append_history(replace(text, activity_id="x", event_data=JSON + b" "), lease=lease),
            lambda: storage.append_history(HistoryEvent(ID, "x", TYPE, None, BINARY + b"1", "binary"), lease=lease),
            lambda: storage.add_compensation(replace(undo, activity_id=NAME + "x"), lease=lease),
            lambda: storage.add_compensation(replace(undo, activity_name=NAME + "x"), lease=lease),
            lambda: storage.add_compensation(replace(undo, args=JSON + b" "), lease=lease),
        ],
    )
    await storage.archive_history(ID, lease=lease)
    assert [event.activity_id for event in await storage.get_archived_history(ID)] == [NAME, "b"]


async def test_limits_of_channels(storage: SQLStorage) -> None:
    await new(storage, ID)
    metadata = b'"' + b"m" * (64 * 1024 - 2) + b'"'
    await storage.subscribe_to_channel(ID, NAME, ChannelMode.BROADCAST)
    number = await storage.publish_to_channel(NAME, b"1", metadata, message_id=NAME, source=NAME)
    assert await storage.publish_to_channel(NAME, b"1", message_id=NAME, source=NAME) == number, "it is the same"
    await storage.publish_to_channel(NAME, b"2", binary=True)
    text, binary = await storage.get_pending_channel_messages_for_instance(ID, NAME)
    assert [text.data, text.metadata == metadata, binary.data_binary] == [b"1", True, b"2"]
    assert len(await storage.subscribe_to_channel(ID, "🐛" * 54, ChannelMode.DIRECT)) == 255
    await refused(
        storage,
        [
            lambda: storage.subscribe_to_channel(ID, NAME + "x", ChannelMode.BROADCAST),
            lambda: storage.subscribe_to_channel(ID, "🐛" * 55, ChannelMode.DIRECT),
            lambda: storage.publish_to_channel(NAME + "x", b"1"),
            lambda: storage.publish_to_channel("c", JSON + b" "),
            lambda: storage.publish_to_channel("c", BINARY + b"1", binary=True),
            lambda: storage.publish_to_channel("c", b"1", metadata + b" "),
            lambda: storage.publish_to_channel("c", b"1", message_id=NAME + "x"),
            lambda: storage.publish_to_channel("c", b"1", message_id="m", source=NAME + "x"),
            lambda: storage.claim_channel_message(2**63, ID),
            lambda: storage.get_pending_channel_messages("c", 2**63),
        ],
    )
    assert await storage.get_pending_channel_messages(NAME, 2**63 - 1) == []
    assert len(await storage.get_pending_channel_messages(NAME, -(2**63 - 1))) == 2


async def test_limits_of_timers_and_times(storage: SQLStorage) -> None:
    for n, (timer_id, at, after) in enumerate([
        (NAME, LAST, None), ("first", FIRST, None), ("far", None, SPAN_MAX), ("now", None, timedelta(0))
    ]):  # fmt: skip
        await new(storage, f"i-{n}")
        timer = TimerSubscription(f"i-{n}", timer_id, at, activity_id=NAME)
        await storage.register_timer_subscription(timer, after=after)
        await storage.update_instance_status(f"i-{n}", WorkflowStatus.WAITING_FOR_TIMER)
    due = await storage.find_expired_timers()
    assert {timer.timer_id for timer in due} == {"first", "now"}
    assert [timer.expires_at for timer in due if timer.timer_id == "first"] == [FIRST]
    times = dict(await storage.db().fetch("SELECT timer_id, expires_at FROM workflow_timer_subscriptions"))
    assert str(times[NAME]).startswith("9999-12-31 23:59:59.999999")
    lease = await leased(storage, "last")
    timer = TimerSubscription("last", "t")
    await refused(
        storage,
        [
            lambda: storage.register_timer_subscription(
                replace(timer, timer_id=NAME + "x"), after=SPAN_MAX, lease=lease
            ),
            lambda: storage.register_timer_subscription(timer, after=SPAN_MAX + timedelta.resolution, lease=lease),
            lambda: storage.register_timer_subscription(timer, after=-timedelta.resolution, lease=lease),
            lambda: storage.register_timer_subscription(
                replace(timer, activity_id=NAME + "x"), after=SPAN_MAX, lease=lease
            ),
        ],
    )


async def test_limits_of_outbox_groups_locks_and_workers(storage: SQLStorage) -> None:
    full = OutboxEvent(NAME, TYPE, NAME, JSON, content_type="c" * 100)
    await storage.add_outbox_event(full)
    await storage.add_outbox_event(OutboxEvent("b", TYPE, NAME, None, BINARY, "binary"))
    first, second = await storage.list_outbox_events()
    assert (first.event_id, first.event_type, first.event_source, first.content_type) == (NAME, TYPE, NAME, "c" * 100)
    assert [first.event_data == JSON, second.event_data_binary == BINARY] == [True, True]
    await new(storage, ID)
    await storage.join_group(ID, NAME)
    assert await storage.get_group_members(NAME) == [ID]
    lock = await storage.try_acquire_system_lock(NAME, NAME, LEASE_MAX_SEC)
    assert lock is not None
    assert (lock.lock_name, lock.worker_id) == (NAME, NAME)
    assert await storage.try_acquire_system_lock(NAME, "w", 1) is None
    await storage.beat_worker(NAME, b'"' + b"i" * (64 * 1024 - 2) + b'"')
    (worker,) = await storage.list_workers()
    assert (worker.worker_id, len(worker.info or b"")) == (NAME, 64 * 1024)
    one = OutboxEvent("e", "paid", "shop")
    events = [
        replace(one, event_id=NAME + "x"),
        replace(one, event_type=TYPE + "x"),
        replace(one, event_source=NAME + "x"),
        replace(one, event_data=JSON + b" "),
        replace(one, event_data_binary=BINARY + b"1", data_type="binary"),
        replace(one, content_type="c" * 101),
    ]
    await refused(storage, [lambda it=it: storage.add_outbox_event(it) for it in events])  # type: ignore[misc]
    await refused(
        storage,
        [
            lambda: storage.join_group(ID, NAME + "x"),
            lambda: storage.try_acquire_system_lock(NAME + "x", "w", 1),
            lambda: storage.try_acquire_system_lock("l", NAME + "x", 1),
            lambda: storage.try_acquire_system_lock("l", "w", LEASE_MAX_SEC + 0.001),
            lambda: storage.beat_worker(NAME + "x"),
            lambda: storage.beat_worker("w", b'"' + b"i" * (64 * 1024 - 1) + b'"'),
            lambda: storage.list_workers(alive_within=SPAN_MAX + timedelta.resolution),
        ],
    )


async def test_limits_of_pages_and_batches(storage: SQLStorage) -> None:
    ids = [f"i-{n:04}" for n in range(1001)]
    await storage.create_instances([WorkflowInstance(id, "wf", b'{"n": 1}') for id in ids])
    page = await storage.list_instances(ListInstancesOptions(limit=1000, input_filters={"n": 1}))
    assert (len(page.instances), page.has_more) == (1000, True)
    assert len(await storage.find_resumable_workflows(1000)) == 1000
    assert all(await storage.get_instances(ids[:1000]))
    leases = [lease for lease in await storage.acquire_locks(ids[:1000], NAME, LEASE_MAX_SEC) if lease]
    assert len(leases) == 1000
    assert all(await storage.refresh_locks(leases, LEASE_MAX_SEC))
    answers = await storage.append_histories([(HistoryEvent(ids[0], f"s:{n}", "E", b"1"), None) for n in range(1001)])
    assert all(isinstance(answer, int) for answer in answers)
    events, more = await storage.get_history_paginated(ids[0], 0, 1000)
    assert (len(events), more) == (1000, True)
    assert await storage.get_history_paginated(ids[0], 2**63 - 1) == ([], False)
    assert await storage.fire_timers([(id, "t") for id in ids[:1000]]) == [False] * 1000
    assert await storage.expire_channel_waits([(id, "c") for id in ids[:1000]]) == [False] * 1000
    await refused(
        storage,
        [
            lambda: storage.list_instances(ListInstancesOptions(limit=1001)),
            lambda: storage.find_resumable_workflows(1001),
            lambda: storage.get_instances(ids),
            lambda: storage.acquire_locks(ids, "w", 1),
            lambda: storage.claim_instances(ids, "w", 1, limit=1),
            lambda: storage.claim_instances(["i"], "w", 1, limit=1001),
            lambda: storage.acquire_locks(["i"], "w", LEASE_MAX_SEC + 0.001),
            lambda: storage.get_history_paginated(ids[0], 0, 1001),
            lambda: storage.get_history_paginated(ids[0], 2**63),
            lambda: storage.fire_timers([(id, "t") for id in ids]),
            lambda: storage.expire_channel_waits([(id, "c") for id in ids]),
            lambda: storage.get_pending_channel_messages("c", 0, 1001),
            lambda: storage.get_group_members("g", limit=1001),
            lambda: storage.get_compensations(ids[0], limit=1001),
            lambda: storage.get_archived_history(ids[0], limit=1001),
            lambda: storage.get_pending_outbox_events(1001),
            lambda: storage.list_outbox_events(limit=1001),
            lambda: storage.find_expired_timers(1001),
            lambda: storage.find_expired_channel_subscriptions(1001),
            lambda: storage.list_workers(limit=1001),
            lambda: storage.deliver_pending(1001),
            lambda: storage.delete_instances(timedelta(0), 1001),
            lambda: storage.delete_instances(SPAN_MAX + timedelta.resolution),
            lambda: storage.cleanup_old_channel_messages(timedelta(0), limit=1001),
        ],
    )


def test_limits_of_workflow_and_activity_names() -> None:
    async def nothing() -> None: ...

    assert activity(name="a" * 150)(nothing).name == "a" * 150
    assert workflow(name="w" * 255)(nothing).name == "w" * 255
    with pytest.raises(LimitError):
        activity(name="a" * 151)(nothing)
    with pytest.raises(LimitError):
        workflow(name="w" * 256)(nothing)
