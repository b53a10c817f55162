"""Every operation of the hot paths and the background ones, run for real on a busy database.

Subjects are made as the work needs them, unmeasured and under a tag of their own, so that a run can follow another.
"""

from contextlib import suppress
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

from perdure.database.operation import Operation, Work
from perdure.database.statements import Call
from perdure.errors import InstanceExistsError, NotSubscribedError
from perdure.model.records import (
    ChannelMessage,
    ChannelMode,
    ChannelWait,
    CompensationEntry,
    HistoryEvent,
    Lease,
    ListInstancesOptions,
    OutboxEvent,
    OutboxStatus,
    OutgoingMessage,
    ParentLink,
    TimerSubscription,
    TimerWait,
    WorkflowInstance,
)
from perdure.model.states import WorkflowStatus
from perdure.storage.administration import administration_of
from perdure.storage.caller_transactions import CallerTransaction
from perdure.storage.stores import SQLStorage
from tests.storage.plans.statement_costs import Meter

DAY = timedelta(days=1)
SOON = timedelta(milliseconds=1)
MANY = 20
LARGE = 50_000  # more messages than any run has in one channel
CONTROL = "list_instances (by a part of the name)"  # reads all there is: an instrument that does not see it is broken

_tags = count(1)


class Stage:
    """A storage with an instrument on it, and new subjects."""

    def __init__(self, storage: SQLStorage, meter: Meter) -> None:
        self.storage, self.measured = storage, meter
        self.tag = next(_tags)
        self._numbers = count(1)

    def name(self, kind: str = "new") -> str:
        """Return a name that is not in use."""
        return f"{kind}-{self.tag}-{next(self._numbers)}"

    async def leased(self) -> Lease:
        lease = await self.storage.create_instance(WorkflowInstance(self.name(), "wf"), worker_id="w", timeout_sec=900)
        assert lease
        return lease

    async def leases(self) -> list[Lease]:
        return [await self.leased() for _ in range(MANY)]

    async def free(self) -> str:
        instance_id = self.name()
        await self.storage.create_instance(WorkflowInstance(instance_id, "wf"))
        return instance_id

    async def listening(self) -> Lease:
        """The lease on an instance that is subscribed to the channel of orders."""
        lease = await self.leased()
        await self.storage.subscribe_to_channel(lease.instance_id, "orders", ChannelMode.BROADCAST)
        return lease

    async def waiting(self, channel: str, mode: ChannelMode, *, after: timedelta | None = None) -> str:
        """An instance that waits on a channel."""
        lease = await self.leased()
        await self.storage.subscribe_to_channel(lease.instance_id, channel, mode)
        assert (await self.storage.suspend(lease, [ChannelWait(channel, "r", after=after)])).suspended
        return lease.instance_id

    async def pass_time(self, time: timedelta) -> None:
        """Return when so much time has passed in the database, so that what is due is due at the first attempt.

        Repeated attempts would add up to a cost that depends on the speed of the machine.
        """
        until = await self.storage.now() + time
        while await self.storage.now() <= until:
            pass


class OnStorage:
    """Acts as a caller's connection, with the instrument on it."""

    def __init__(self, storage: SQLStorage) -> None:
        self._storage = storage
        self.features = storage._backend.driver.features

    async def run(self, call: Call) -> Any:
        def only() -> Operation[Any]:
            return (yield call)

        return await self._storage._run(Work(only))


async def run_all(storage: SQLStorage, meter: Meter) -> None:
    """Every operation, one after the other."""
    stage = Stage(storage, meter)
    for act in (
        *(_locks, _creations, _moves, _findings, _histories, _archive, _lists, _looks, _timers, _publications),
        *(_subscriptions, _pending, _receives, _deliveries, _sweeps, _matching, _outbox, _relays, _others, _removals),
        _administration,
    ):
        await act(stage)


async def run_writes(storage: SQLStorage, meter: Meter) -> None:
    """What a workflow's own transaction has in it."""
    stage = Stage(storage, meter)
    async with storage.transaction():
        for act in (_creations, _moves, _histories, _archive, _publications, _subscriptions):
            await act(stage)


async def _locks(on: Stage) -> None:
    s, m, free = on.storage, on.measured, await on.free()
    with m("try_acquire_lock"):
        lease = await s.try_acquire_lock(free, "w", 30)
    assert lease
    with m("try_acquire_lock (held)"):
        assert await s.try_acquire_lock(free, "w", 30) is None
    with m("refresh_lock"):
        await s.refresh_lock(free, "w", 30, lease=lease)
    with m("release_lock"):
        await s.release_lock(free, "w", lease=lease)
    leases = await on.leases()
    with m("refresh_locks"):
        assert all(await s.refresh_locks(leases, 30))
    many = [await on.free() for _ in range(MANY)]
    with m("acquire_locks"):
        assert all(await s.acquire_locks(many, "w", 30))
    with m("acquire_locks (held)"):
        assert not any(await s.acquire_locks(many, "w", 30))
    many = [await on.free() for _ in range(MANY)]
    with m("claim_instances"):
        assert len(await s.claim_instances(many, "w", 30, limit=5)) == 5
    with m("cleanup_stale_locks"):
        await s.cleanup_stale_locks()


async def _creations(on: Stage) -> None:
    s, m = on.storage, on.measured
    with m("create_instance"):
        await s.create_instance(WorkflowInstance(on.name(), "wf"))
    with m("create_instance (leased)"):
        await s.create_instance(WorkflowInstance(on.name(), "wf"), worker_id="w")
    whole = WorkflowInstance(on.name(), "wf", status=WorkflowStatus.WAITING_FOR_TIMER)
    with m("create_instance (with its first rows)"):
        await s.create_instance(
            whole,
            events=[HistoryEvent(whole.instance_id, "first", "Noted", b"{}")],
            timers=[TimerWait("t", "t", after=DAY)],
        )
    lease = await on.leased()
    parent = ParentLink(lease, f"ends:{lease.instance_id}", CompensationEntry(lease.instance_id, "step:1", "undo"))
    with m("create_instance (of a parent)"):
        await s.create_instance(WorkflowInstance(on.name(), "wf"), parent=parent)
    with m("create_instance (in a caller's transaction)"):
        await CallerTransaction(OnStorage(s), look_first=True).create_instance(WorkflowInstance(on.name(), "wf"))
    for first in (True, False):
        caller = CallerTransaction(OnStorage(s), look_first=first)
        with m("create_instance (in a caller's transaction, existing)"), suppress(InstanceExistsError):
            await caller.create_instance(whole)
    with m("define_workflows"):
        await s.define_workflows({"wf": "", on.name(): "h"})
    many = [WorkflowInstance(on.name(), "wf") for _ in range(MANY)]
    with m("create_instances"):
        await s.create_instances(many)
    with m("get_instance"):
        assert await s.get_instance(many[0].instance_id)
    with m("get_instances"):
        assert all(await s.get_instances([instance.instance_id for instance in many]))


async def _moves(on: Stage) -> None:
    s, m = on.storage, on.measured
    lease, leases = await on.leased(), await on.leases()
    with m("update_instance_activity"):
        await s.update_instance_activity(lease.instance_id, "step:1", lease=lease)
    with m("update_instance_status"):
        await s.update_instance_status(lease.instance_id, WorkflowStatus.WAITING_FOR_EVENT, lease=lease)
    with m("update_instance_status (failed)"):
        await s.update_instance_status(lease.instance_id, WorkflowStatus.FAILED, "broken", lease=lease)
    with m("update_instance_output"):
        await s.update_instance_output(leases[0].instance_id, b"{}", lease=leases[0])
    with m("complete_and_release"):
        await s.complete_and_release(leases[1], b"{}")
    await s.register_timer_subscription(TimerSubscription(leases[2].instance_id, "t"), after=DAY)
    with m("complete_instances"):
        await s.complete_instances([(lease, b"{}") for lease in leases[2:]])
    with m("cancel_instance"):
        await s.cancel_instance(await on.free())
    with m("cancel_instance (compensate)"):
        await s.cancel_instance(await on.free(), compensate=True)


async def _findings(on: Stage) -> None:
    s, m = on.storage, on.measured
    await on.free()
    with m("find_resumable_workflows"):
        assert await s.find_resumable_workflows()
    with m("find_resumable_workflows (named)"):
        assert await s.find_resumable_workflows(workflow_names=["known", "wf"])
    with m("find_resumable_workflows (nothing of these names)"):
        assert not await s.find_resumable_workflows(workflow_names=[f"absent{n}" for n in range(MANY)])
    with m("next_due_at"):
        await s.next_due_at()
    with m("next_work_at"):
        await s.next_work_at()
    with m("find_expired_timers"):
        await s.find_expired_timers()
    with m("find_expired_channel_subscriptions"):
        await s.find_expired_channel_subscriptions()


async def _histories(on: Stage) -> None:
    s, m, lease, leases = on.storage, on.measured, await on.leased(), await on.leases()
    event = HistoryEvent(lease.instance_id, "step:1", "ActivityCompleted", b"{}")
    with m("append_history"):
        await s.append_history(event, lease=lease)
    with m("append_history (again)"):
        await s.append_history(event, lease=lease)
    many = [(HistoryEvent(lease.instance_id, "step:1", "ActivityCompleted", b"{}"), lease) for lease in leases]
    with m("append_histories"):
        await s.append_histories(many)
    with m("append_histories (again)"):
        await s.append_histories(many)
    last = [(HistoryEvent(lease.instance_id, "step:2", "ActivityCompleted", b"{}"), lease) for lease in leases]
    with m("append_and_complete"):
        await s.append_and_complete(last, [(lease, b"{}") for lease in leases[1:]])
    with m("get_history_paginated"):
        events, more = await s.get_history_paginated("long", 0, 100)
    assert more
    with m("get_history_paginated (next page)"):
        await s.get_history_paginated("long", events[-1].id, 100)
    with m("get_last_event"):
        assert await s.get_last_event("long", events[-1].event_type)
    with m("get_history_count"):
        await s.get_history_count("long")


async def _archive(on: Stage) -> None:
    s, m, lease = on.storage, on.measured, await on.leased()
    instance_id = lease.instance_id
    for n in range(3):
        await s.append_history(HistoryEvent(instance_id, f"step:{n}", "ActivityCompleted", b"{}"), lease=lease)
    with m("archive_history"):
        await s.archive_history(instance_id, lease=lease)
    with m("get_archived_history"):
        assert len(await s.get_archived_history(instance_id)) == 3
    await s.append_history(HistoryEvent(instance_id, "step:1", "ActivityCompleted", b"{}"), lease=lease)
    await s.subscribe_to_channel(instance_id, "mail", ChannelMode.DIRECT, lease=lease)
    with m("recur_instance"):
        await s.recur_instance(instance_id, b"{}", lease=lease)
    with m("recur_instance (again)"):
        await s.recur_instance(instance_id, b"{}", lease=lease)
    with m("cleanup_instance_subscriptions"):
        await s.cleanup_instance_subscriptions(instance_id, lease=lease)


async def _lists(on: Stage) -> None:
    s, m, now = on.storage, on.measured, datetime.now(UTC)
    searches = {
        "unfiltered": ListInstancesOptions(),
        "one state": ListInstancesOptions(status_filter=WorkflowStatus.RUNNING),
        "a rare state": ListInstancesOptions(status_filter=WorkflowStatus.COMPENSATING),
        "between dates": ListInstancesOptions(started_after=now - 31 * DAY, started_before=now - 29.9999 * DAY),
        "before a date, one state": ListInstancesOptions(
            started_before=now - 15 * DAY, status_filter=WorkflowStatus.RUNNING
        ),
        "every framework": ListInstancesOptions(framework=None),
        "one workflow": ListInstancesOptions(workflow_name="wf", limit=5),  # a page of each state is read
        "two states": ListInstancesOptions(
            statuses=(WorkflowStatus.WAITING_FOR_TIMER, WorkflowStatus.WAITING_FOR_MESSAGE), limit=5
        ),
        "without payloads": ListInstancesOptions(payloads=False),
        "one workflow, without payloads": ListInstancesOptions(workflow_name="wf", limit=5, payloads=False),
        "one workflow, one state": ListInstancesOptions(workflow_name="wf", status_filter=WorkflowStatus.RUNNING),
        "one workflow, a rare state": ListInstancesOptions(
            workflow_name="wf", status_filter=WorkflowStatus.COMPENSATING
        ),
    }
    with m(CONTROL):
        await s.list_instances(ListInstancesOptions(workflow_name_filter="absent"))
    for name, options in searches.items():
        with m(f"list_instances ({name})"):
            page = await s.list_instances(options)
        with m(f"count_instances ({name})"):
            assert await s.count_instances(options, limit=MANY) <= MANY
        if page.next_page_token:
            following = {field: getattr(options, field) for field in ListInstancesOptions.__slots__}
            with m(f"list_instances ({name}, next page)"):
                await s.list_instances(ListInstancesOptions(**following | {"page_token": page.next_page_token}))


async def _looks(on: Stage) -> None:
    """What a page of runs is shown with."""
    s, m, leases = on.storage, on.measured, await on.leases()
    ids = [lease.instance_id for lease in leases]
    for lease in leases:
        await s.append_history(HistoryEvent(lease.instance_id, "~parent", "Parent", b"{}"), lease=lease)
        await s.register_timer_subscription(TimerSubscription(lease.instance_id, "t"), after=DAY, lease=lease)
    with m("get_events"):
        assert len(await s.get_events(ids, ["~parent", "~deadline"])) == MANY
    with m("get_waits"):
        assert len(await s.get_waits(ids)) == MANY
    with m("list_ended"):
        last, *_ = await s.list_ended(MANY)
    with m("list_ended (next page)"):
        await s.list_ended(MANY, before=(last.ended_at, last.instance_id))
    with m("list_workflow_names"):
        await s.list_workflow_names()
    with m("now"):
        await s.now()
    with m("back_off"):
        await s.back_off(leases[0], 1, "no", 60)
    for lease in leases[1:]:
        await s.back_off(lease, 1, "no", 60)
    with m("get_stuck"):
        assert all(await s.get_stuck(ids))
    with m("list_stuck"):
        first, *_ = await s.list_stuck(MANY // 2)
    with m("list_stuck (next page)"):
        await s.list_stuck(MANY // 2, after=(first.since, first.instance_id))
    with m("clear_stuck"):
        await s.clear_stuck(ids)
    for instance_id in ids:
        await s.cancel_instance(instance_id)
    with m("delete_ended"):
        assert all(await s.delete_ended(ids))


async def _timers(on: Stage) -> None:
    s, m, lease, second = on.storage, on.measured, await on.leased(), await on.leased()
    instance_id = lease.instance_id
    with m("register_timer_subscription"):
        await s.register_timer_subscription(TimerSubscription(instance_id, "a"), after=DAY, lease=lease)
    with m("remove_timer_subscription"):
        await s.remove_timer_subscription(instance_id, "a", lease=lease)
    past = datetime.now(UTC) - DAY
    await s.register_timer_subscription(TimerSubscription(instance_id, "b", past), lease=lease)
    with m("fire_timer (leased)"):
        assert await s.fire_timer(instance_id, "b", lease=lease)
    with m("register_timer_subscription_and_release_lock"):
        await s.register_timer_subscription_and_release_lock(
            TimerSubscription(instance_id, "c"), instance_id, "w", after=DAY, lease=lease
        )
    await s.register_timer_subscription(TimerSubscription(second.instance_id, "d", past), lease=second)
    await s.update_instance_status(second.instance_id, WorkflowStatus.WAITING_FOR_TIMER, lease=second)
    await s.release_lock(second.instance_id, "w", lease=second)
    with m("fire_timer"):
        assert await s.fire_timer(second.instance_id, "d")
    leases = await on.leases()
    for each in leases:
        await s.register_timer_subscription(TimerSubscription(each.instance_id, "e", past), lease=each)
        await s.update_instance_status(each.instance_id, WorkflowStatus.WAITING_FOR_TIMER, lease=each)
        await s.release_lock(each.instance_id, "w", lease=each)
    with m("fire_timers"):
        assert all(await s.fire_timers([(each.instance_id, "e") for each in leases]))


async def _publications(on: Stage) -> None:
    s, m, lease, key = on.storage, on.measured, await on.leased(), on.name("key")
    for channel in ("stock", on.name("channel")):
        with m("publish_to_channel"):
            await s.publish_to_channel(channel, b"{}")
    with m("publish_to_channel (leased)"):
        await s.publish_to_channel("stock", b"{}", lease=lease)
    with m("publish_to_channel (with an id)"):
        await s.publish_to_channel("stock", b"{}", message_id=key, source="web")
    with m("publish_to_channel (with an id, again)"):
        await s.publish_to_channel("stock", b"{}", message_id=key, source="web")
    many = [OutgoingMessage(f"stock-{n % 3}", b"{}") for n in range(MANY)]
    with m("publish_messages"):
        await s.publish_messages(many)


async def _subscriptions(on: Stage) -> None:
    s, m, lease = on.storage, on.measured, await on.leased()
    instance_id = lease.instance_id
    for channel, mode in (
        ("news", ChannelMode.BROADCAST),
        ("stock", ChannelMode.COMPETING),
        ("inbox", ChannelMode.DIRECT),
    ):
        with m(f"subscribe_to_channel ({mode})"):
            await s.subscribe_to_channel(instance_id, channel, mode, lease=lease)
        with m("get_channel_mode"):
            await s.get_channel_mode(channel)
    with m("get_channel_subscription"):
        assert await s.get_channel_subscription(instance_id, "news")
    with m("update_delivery_cursor"):
        await s.update_delivery_cursor(instance_id, "news", 1, lease=lease)
    with m("get_delivery_cursor"):
        await s.get_delivery_cursor(instance_id, "news")
    with m("clear_channel_waiting_state"):
        await s.clear_channel_waiting_state(instance_id, "news", lease=lease)
    with m("unsubscribe_from_channel"):
        await s.unsubscribe_from_channel(instance_id, "news", lease=lease)


async def _pending(on: Stage) -> None:
    s, m, lease = on.storage, on.measured, await on.leased()
    instance_id, channel = lease.instance_id, on.name("channel")
    await s.subscribe_to_channel(instance_id, channel, ChannelMode.BROADCAST)
    await s.subscribe_to_channel(instance_id, "stock", ChannelMode.COMPETING)
    await s.publish_messages([OutgoingMessage(name, b"{}") for name in (channel, "stock") for _ in range(MANY)])
    with m("get_pending_channel_messages"):
        first, *_ = await s.get_pending_channel_messages("stock", limit=MANY)
    with m("get_pending_channel_messages_for_instance (broadcast)"):
        assert len(await s.get_pending_channel_messages_for_instance(instance_id, channel)) == MANY
    with m("get_pending_channel_messages_for_instance (competing)"):
        await s.get_pending_channel_messages_for_instance(instance_id, "stock", limit=MANY)
    with m("get_pending_channel_messages_for_instance (not subscribed)"), suppress(NotSubscribedError):
        await s.get_pending_channel_messages_for_instance(instance_id, "news")
    with m("claim_channel_message"):
        assert await s.claim_channel_message(first.id, instance_id, lease=lease)
    with m("delete_channel_message"):
        await s.delete_channel_message(first.id, lease=lease)


async def _receives(on: Stage) -> None:
    s, m, lease, ready, leases = on.storage, on.measured, await on.leased(), await on.leased(), await on.leases()
    await s.subscribe_to_channel(lease.instance_id, "news", ChannelMode.BROADCAST)
    await s.subscribe_to_channel(ready.instance_id, "stock", ChannelMode.COMPETING)
    with m("register_channel_receive_and_release_lock"):
        await s.register_channel_receive_and_release_lock(lease.instance_id, "news", "w", "r", after=DAY, lease=lease)
    with m("register_channel_receive_and_release_lock (ready)"):
        assert not (
            await s.register_channel_receive_and_release_lock(ready.instance_id, "stock", "w", "r", lease=ready)
        ).suspended
    with m("suspend (ready)"):
        assert not (await s.suspend(ready, [TimerWait("t", "t", after=DAY), ChannelWait("stock", "r")])).suspended
    for subscriber in leases:
        await s.subscribe_to_channel(subscriber.instance_id, "news", ChannelMode.BROADCAST)
    waits: list[TimerWait | ChannelWait] = [TimerWait("t", "t", after=DAY), ChannelWait("news", "r", after=DAY)]
    await s.register_timer_subscription(TimerSubscription(leases[0].instance_id, "other"), after=DAY)
    with m("suspend"):
        assert (await s.suspend(leases[0], waits)).suspended
    with m("suspend (one channel)"):
        assert (await s.suspend(leases.pop(), waits[1:])).suspended
    with m("suspend (one timer)"):
        assert (await s.suspend(leases.pop(), waits[:1])).suspended
    with m("suspend_instances"):
        assert all(await s.suspend_instances([(lease, waits) for lease in leases[1:]]))
    events: list[tuple[Lease, list[TimerWait | ChannelWait]]] = [
        (lease, [ChannelWait("news", "r", subscribe=ChannelMode.BROADCAST)]) for lease in await on.leases()
    ]
    with m("suspend_instances (to be subscribed)"):
        assert all(await s.suspend_instances(events))


async def _deliveries(on: Stage) -> None:
    s, m, channel = on.storage, on.measured, on.name("channel")
    reader, worker = await on.waiting(channel, ChannelMode.BROADCAST), await on.waiting("idle", ChannelMode.COMPETING)
    late = await on.waiting(channel, ChannelMode.BROADCAST, after=SOON)
    lease = await on.leased()
    await s.subscribe_to_channel(lease.instance_id, channel, ChannelMode.BROADCAST)
    await s.publish_to_channel(channel, b"{}")
    await s.publish_to_channel("idle", b"{}")
    (message,) = await s.get_pending_channel_messages(channel)
    await on.pass_time(SOON)
    with m("expire_channel_wait"):
        assert await s.expire_channel_wait(late, channel)
    waits = [(await on.waiting(channel, ChannelMode.BROADCAST, after=SOON), channel) for _ in "ab"]
    await on.pass_time(SOON)
    with m("expire_channel_waits"):
        assert await s.expire_channel_waits(waits) == [True, True]
    with m("get_channel_subscribers_waiting"):
        assert await s.get_channel_subscribers_waiting("news", limit=100) is not None
    with m("deliver_channel_message (broadcast)"):
        assert await s.deliver_channel_message(reader, message)
    with m("deliver_channel_message (nothing pending)"):
        assert not await s.deliver_channel_message(reader, message)
    with m("deliver_channel_message (leased)"):
        assert await s.deliver_channel_message(lease.instance_id, message, lease=lease, activity_id="r")
    with m("deliver_channel_message_with_lock (competing)"):
        offered = ChannelMessage(0, "idle", "")
        assert await s.deliver_channel_message_with_lock(worker, "idle", offered, "w", 30)


async def _sweeps(on: Stage) -> None:
    """With tens of thousands of idle waits and messages on other channels."""
    s, m = on.storage, on.measured
    while await s.deliver_pending(1000):
        pass
    with m("deliver_pending (nothing marked)"):
        assert not await s.deliver_pending()
    channels = [on.name("channel") for _ in range(MANY)]
    for n, channel in enumerate(channels):
        await on.waiting(channel, ChannelMode.COMPETING if n % 2 else ChannelMode.BROADCAST)
        await s.publish_to_channel(channel, b"{}")
    with m("deliver_pending"):
        assert len(await s.deliver_pending()) == MANY
    await on.waiting(channels[1], ChannelMode.COMPETING)
    await s.publish_to_channel(channels[1], b"{}")
    with m("deliver_pending (one channel)"):
        assert await s.deliver_pending(channels=channels[1:2])
    await on.waiting(channels[0], ChannelMode.BROADCAST)
    await s.publish_to_channel(channels[0], b"{}")
    await s.db().execute(f"UPDATE channel_messages SET framework = NULL WHERE channel = '{channels[0]}'")
    with m("deliver_pending (published by the rest of the family)"):
        assert await s.deliver_pending()


async def _matching(on: Stage) -> None:
    """With tens of thousands of waits for other values, and of messages that no run waits for, on the same channel."""
    s, m, lease, value = on.storage, on.measured, await on.listening(), on.name("value")
    new = on.name("channel")
    await s.subscribe_to_channel(lease.instance_id, new, ChannelMode.BROADCAST, lease=lease)
    with m("suspend (for values, on a new channel)"):
        assert (await s.suspend(lease, [ChannelWait(new, "n", where={"id": value})])).suspended
    again = await s.try_acquire_lock(lease.instance_id, "w", 900)
    assert again
    lease = again
    with m("suspend (for values)"):
        assert (await s.suspend(lease, [ChannelWait("orders", "a", where={"id": value})])).suspended
    for _ in range(LARGE // 1000):
        await s.deliver_pending(channels=["orders"])  # nothing of what grew is left to be looked at
    await s.publish_to_channel("orders", b'{"id": "nobody\'s"}')
    with m("deliver_pending (nobody waits for these values)"):
        assert not await s.deliver_pending()
    await s.publish_to_channel("orders", f'{{"id": "{value}"}}'.encode())
    with m("deliver_pending (somebody waits for these values)"):
        assert len(await s.deliver_pending()) == 1
    lease, late = await on.listening(), await on.listening()
    both: list[dict[str, object]] = [{"id": value}, {"id": on.name("value"), "n": 1}]
    for each in (lease, late):  # all that is in the channel lies before them
        for table, column in (
            ("channel_subscriptions", "cursor_message_id"),
            ("channel_delivery_cursors", "last_delivered_id"),
        ):
            await s.db().execute(
                f"UPDATE {table} SET {column} = 0 WHERE instance_id = '{each.instance_id}' AND channel = 'orders'"
            )
    await s.deliver_channel_message(
        late.instance_id, ChannelMessage(0, "orders", ""), lease=late, activity_id="k", where=both[1]
    )  # the keys of another set of paths are made once for all
    with m("suspend (for values, ready)"):
        waits: list[TimerWait | ChannelWait] = [
            ChannelWait("orders", f"r:{n}", where=each) for n, each in enumerate(both)
        ]
        assert (await s.suspend(lease, waits)).ready == ("r:0",)
    with m("pending_waits (for values)"):
        asked = [wait for wait in waits if isinstance(wait, ChannelWait)]
        assert await s.pending_waits(lease.instance_id, asked) == ["r:0"]
    with m("get_channel_waits"):
        assert await s.get_channel_waits(lease.instance_id) == []
    offered = ChannelMessage(0, "orders", "")
    for step, where in (("x", {"id": "absent"}), ("y", {"id": value}), ("z", {"id": value})):
        with m(f"deliver_channel_message (leased, for values, {step})"):
            found = await s.deliver_channel_message(
                lease.instance_id, offered, lease=lease, activity_id=step, where=where
            )
        assert bool(found) == (step == "y")
    with m("get_pending_channel_messages_for_instance (some taken out of turn)"):
        await s.get_pending_channel_messages_for_instance(lease.instance_id, "orders", limit=MANY)
    waits = [ChannelWait("orders", "b", where=both[1]), ChannelWait("orders", "c", where={"id": "absent"})]
    with m("suspend (for values, behind all messages)"):
        assert (await s.suspend(lease, waits)).suspended
    again = await s.try_acquire_lock(lease.instance_id, "w", 900)
    assert again
    await s.subscribe_to_channel(lease.instance_id, "news", ChannelMode.BROADCAST, lease=again)
    waits = [*waits[:1], ChannelWait("news", "d")]
    with m("suspend (for values, again)"):
        assert (await s.suspend(again, waits)).suspended
    again = await s.try_acquire_lock(lease.instance_id, "w", 900)
    assert again
    with m("register_channel_receive_and_release_lock (beside other waits)"):
        assert (
            await s.register_channel_receive_and_release_lock(lease.instance_id, "news", "w", "e", lease=again)
        ).suspended
    for _ in range(LARGE // 1000):
        await s.deliver_pending()
    await s.update_instance_status(late.instance_id, WorkflowStatus.COMPENSATING, lease=late)
    mixed = await on.listening()
    assert (await s.suspend(mixed, [ChannelWait("orders", "a", where={"id": "absent"})])).suspended
    message = await s.publish_to_channel("orders", b'{"id": "late"}')
    await s.db().execute(f"UPDATE channel_messages SET framework = NULL WHERE id = {message}")
    with m("deliver_pending (published by the rest of the family, nobody waits for it)"):
        assert not await s.deliver_pending()
    await s.deliver_pending(channels=["orders"])


async def _outbox(on: Stage) -> None:
    s, m, source, lease = on.storage, on.measured, on.name("source"), await on.leased()
    for name in (source, "blocked", source):
        new = OutboxEvent(on.name("event"), "t", name, b"{}")
        with m("add_outbox_event"):
            await s.add_outbox_event(new, lease=lease)
        with m("add_outbox_event (again)"):
            await s.add_outbox_event(new, lease=lease)
    await s.mark_outbox_event_sent((await s.get_pending_outbox_events(1))[0].event_id)
    (event,) = await s.get_pending_outbox_events(1)
    with m("get_pending_outbox_events (nothing ready)"):
        assert not await s.get_pending_outbox_events()
    with m("mark_outbox_event_failed"):
        await s.mark_outbox_event_failed(event.event_id)
    with m("requeue_outbox_event"):
        await s.requeue_outbox_event(event.event_id)
    for status in (None, "invalid", "published", "failed"):
        with m(f"list_outbox_events ({status or 'all'})"):
            page = await s.list_outbox_events(status)
        if page:
            with m(f"list_outbox_events ({status or 'all'}, next page)"):
                await s.list_outbox_events(status, after=page[-1].event_id)
    await s.mark_outbox_event_sent((await s.get_pending_outbox_events())[0].event_id)


async def _relays(on: Stage) -> None:
    s, m = on.storage, on.measured
    sources = [on.name("source") for _ in range(3)]
    for n in range(MANY):
        await s.add_outbox_event(OutboxEvent(on.name("event"), "t", sources[n % 3], b"{}"))
    with m("get_pending_outbox_events"):
        events = await s.get_pending_outbox_events(10)
    with m("increment_outbox_attempts"):
        await s.increment_outbox_attempts(events[0].event_id, back_off=timedelta(0))
    with m("settle_outbox_events"):
        await s.settle_outbox_events(
            sent=[each.event_id for each in events[1:6]], released=[each.event_id for each in events[6:]], relay_id=""
        )
    while events := await s.get_pending_outbox_events(1000):
        for event in events:
            with m("mark_outbox_event_sent"):
                await s.mark_outbox_event_sent(event.event_id)


async def _others(on: Stage) -> None:
    s, m, lease = on.storage, on.measured, await on.leased()
    instance_id, duty, worker = lease.instance_id, on.name("duty"), on.name("worker")
    for group in ("few", "many"):
        with m("join_group"):
            await s.join_group(instance_id, group, lease=lease)
    with m("get_group_members (of a small group)"):
        await s.get_group_members("few", limit=MANY)
    with m("get_group_members (of a large group)"):
        await s.get_group_members("many", limit=MANY)
    with m("leave_group"):
        await s.leave_group(instance_id, "few", lease=lease)
    with m("leave_all_groups"):
        await s.leave_all_groups(instance_id, lease=lease)
    with m("add_compensation"):
        await s.add_compensation(CompensationEntry(instance_id, "step:1", "undo"), lease=lease)
    with m("get_compensations"):
        assert len(await s.get_compensations(instance_id)) == 1
    with m("try_acquire_system_lock"):
        assert await s.try_acquire_system_lock(duty, "w", 30)
    with m("try_acquire_system_lock (renewed)"):
        assert await s.try_acquire_system_lock(duty, "w", 30)
    with m("try_acquire_system_lock (held)"):
        assert not await s.try_acquire_system_lock(duty, "x", 30)
    with m("release_system_lock"):
        await s.release_system_lock(duty, "w")
    with m("try_acquire_system_lock (free)"):
        assert await s.try_acquire_system_lock(duty, "x", 30)
    await s.release_system_lock(duty, "x")
    with m("cleanup_expired_system_locks"):
        assert await s.cleanup_expired_system_locks() == 1
    with m("beat_worker (new)"):
        await s.beat_worker(worker)
    with m("beat_worker"):
        await s.beat_worker(worker)
    with m("list_workers"):
        await s.list_workers(alive_within=DAY)
    with m("beat_worker (gone)"):
        await s.beat_worker(worker, gone=True)


async def _removals(on: Stage) -> None:
    s, m = on.storage, on.measured
    with m("delete_instances"):
        await s.delete_instances(30 * DAY)
    with m("cleanup_old_outbox_events"):
        await s.cleanup_old_outbox_events(30 * DAY)
    s._swept_to = ""  # every run looks at the first channels
    with m("cleanup_old_channel_messages (ids)"):  # no message is so old
        await s.cleanup_old_channel_messages(30 * DAY, limit=100, ids_older_than=10 * DAY)
    s._swept_to = ""
    with m("cleanup_old_channel_messages"):
        await s.cleanup_old_channel_messages(10 * DAY, limit=100)
    with m("cleanup_old_channel_messages (forced)"):
        await s.cleanup_old_channel_messages(10 * DAY, limit=100, force=True)


async def _administration(on: Stage) -> None:
    """What operators look at and do."""
    m, administration = on.measured, administration_of(on.storage)
    assert administration is not None
    audit, views, surveys = administration
    ids = [await on.free() for _ in range(MANY)]
    with m("record an action"):
        audit_id = await audit.add("Ada", "cancel", "x", runs=ids, keep=timedelta(days=30))
    with m("record an action (removing old ones)"):
        await audit.add("Ada", "cancel", "x", keep=timedelta(seconds=0))
    with m("record an outcome"):
        await audit.finish(audit_id, "done")
    with m("relate runs to an action"):
        await audit.relate(audit_id, ids)
    with m("list actions"):
        await audit.latest(MANY)
    with m("list actions (of a run)"):
        await audit.of_run(ids[0])
    name = on.name("view")
    with m("save a view"):
        assert await views.add(name, "state:failed", "Ada")
    with m("list views"):
        assert await views.list()
    with m("remove a view"):
        assert await views.remove(name)
    with m("list leases"):
        last = (await surveys.list_leases(MANY))[-1]
    with m("list leases (next page)"):
        await surveys.list_leases(MANY, after=(last.expires_at, last.instance_id))
    with m("list system locks"):
        await surveys.list_system_locks()
    with m("oldest waiting runs"):
        await surveys.oldest_in([WorkflowStatus.WAITING_FOR_TIMER, WorkflowStatus.WAITING_FOR_MESSAGE])
    with m("list channels"):
        await surveys.list_channels(3)
    with m("some that wait on a channel"):
        await surveys.some_waiting("news", MANY)
    with m("list groups"):
        await surveys.list_groups(3)
    for status in (OutboxStatus.PENDING, OutboxStatus.PUBLISHED):
        with m(f"list events ({status})"):
            await surveys.list_outbox(status, MANY)
        with m(f"count events ({status})"):
            await surveys.count_outbox(status, MANY)
