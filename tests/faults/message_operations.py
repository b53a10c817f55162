"""Operations on timers, channels, messages and their delivery."""

from datetime import UTC, datetime, timedelta

from perdure.model.records import (
    ChannelMessage,
    ChannelMode,
    ChannelWait,
    OutgoingMessage,
    TimerSubscription,
    TimerWait,
)
from perdure.model.states import WorkflowStatus
from perdure.storage.stores import SQLStorage
from tests.faults.operations import DAY, MANY, OLD, Act, operation, published, subscribed
from tests.storage.plans.operations import Stage

PAST = datetime(2020, 1, 1, tzinfo=UTC)
SOON = timedelta(milliseconds=1)

# Timers and waits.


@operation
async def register_timer_subscription(on: Stage) -> Act:
    lease = await on.leased()
    return lambda s: s.register_timer_subscription(TimerSubscription(lease.instance_id, "t"), after=DAY, lease=lease)


@operation
async def register_timer_subscription_and_release_lock(on: Stage) -> Act:
    lease = await on.leased()
    timer = TimerSubscription(lease.instance_id, "t")
    return lambda s: s.register_timer_subscription_and_release_lock(
        timer, lease.instance_id, "w", after=DAY, lease=lease
    )


async def _asleep(on: Stage) -> str:
    """An instance whose timer is due."""
    lease = await on.leased()
    await on.storage.register_timer_subscription(TimerSubscription(lease.instance_id, "t", PAST), lease=lease)
    await on.storage.update_instance_status(lease.instance_id, WorkflowStatus.WAITING_FOR_TIMER, lease=lease)
    await on.storage.release_lock(lease.instance_id, "w", lease=lease)
    return lease.instance_id


@operation
async def find_expired_timers(on: Stage) -> Act:
    await _asleep(on)
    return lambda s: s.find_expired_timers()


@operation
async def remove_timer_subscription(on: Stage) -> Act:
    lease = await on.leased()
    await on.storage.register_timer_subscription(TimerSubscription(lease.instance_id, "t"), after=DAY, lease=lease)
    return lambda s: s.remove_timer_subscription(lease.instance_id, "t", lease=lease)


@operation
async def fire_timer(on: Stage) -> Act:
    sleeper = await _asleep(on)
    return lambda s: s.fire_timer(sleeper, "t")


@operation
async def fire_timer__leased(on: Stage) -> Act:
    lease = await on.leased()
    await on.storage.register_timer_subscription(TimerSubscription(lease.instance_id, "t", PAST), lease=lease)
    return lambda s: s.fire_timer(lease.instance_id, "t", lease=lease)


@operation
async def fire_timers(on: Stage) -> Act:
    timers = [(await _asleep(on), "t") for _ in range(MANY)]
    return lambda s: s.fire_timers(timers)


@operation
async def suspend(on: Stage) -> Act:
    lease = await subscribed(on, "news", ChannelMode.BROADCAST)
    return lambda s: s.suspend(lease, [TimerWait("t", "t", after=DAY), ChannelWait("news", "r", after=DAY)])


@operation
async def suspend__ready(on: Stage) -> Act:
    lease = await subscribed(on, "stock", ChannelMode.COMPETING)
    await published(on, "stock")
    return lambda s: s.suspend(lease, [TimerWait("t", "t", after=DAY), ChannelWait("stock", "r")])


@operation
async def suspend__for_values(on: Stage) -> Act:
    lease = await subscribed(on, "news", ChannelMode.BROADCAST)
    await on.storage.publish_to_channel("news", b'{"n": 2}')
    waits = [ChannelWait("news", f"r:{n}", after=DAY, where={"n": -n}) for n in range(MANY)]
    return lambda s: s.suspend(lease, [*waits, ChannelWait("news", "m", where={"m": 1})])


@operation
async def suspend__for_values_ready(on: Stage) -> Act:
    lease = await subscribed(on, "news", ChannelMode.BROADCAST)
    for n in range(MANY):
        await on.storage.publish_to_channel("news", f'{{"n": {n}}}'.encode())
    return lambda s: s.suspend(
        lease, [ChannelWait("news", "q", where={"n": -1}), ChannelWait("news", "r", where={"n": 1})]
    )


async def _picky(on: Stage, *values: int) -> str:
    """An instance that waits for messages with these values."""
    lease = await subscribed(on, "news", ChannelMode.BROADCAST)
    waits = [ChannelWait("news", f"r:{n}", after=DAY, where={"n": n}) for n in values]
    assert (await on.storage.suspend(lease, waits)).suspended
    return lease.instance_id


@operation
async def suspend__for_values_again(on: Stage) -> Act:
    picky = await _picky(on, 1, 2, 3)
    lease = await on.storage.try_acquire_lock(picky, "w", 900)
    assert lease
    kept = ChannelWait("news", "r:1", after=DAY, where={"n": 1})
    return lambda s: s.suspend(lease, [kept, ChannelWait("news", "r:2", where={"n": 9})])


@operation
async def register_channel_receive_and_release_lock__beside_another(on: Stage) -> Act:
    picky = await _picky(on, 1, 2)
    lease = await on.storage.try_acquire_lock(picky, "w", 900)
    assert lease
    return lambda s: s.register_channel_receive_and_release_lock(picky, "news", "w", "r", lease=lease)


@operation
async def update_instance_status__to_waiting(on: Stage) -> Act:
    picky = await _picky(on, 1)
    lease = await on.storage.try_acquire_lock(picky, "w", 900)
    assert lease
    await on.storage.publish_to_channel("news", b'{"n": 1}')
    await on.storage.update_instance_status(picky, WorkflowStatus.RUNNING, lease=lease)
    await on.storage.deliver_pending()
    return lambda s: s.update_instance_status(picky, WorkflowStatus.WAITING_FOR_MESSAGE, lease=lease)


@operation
async def suspend_instances(on: Stage) -> Act:
    leases = [await subscribed(on, "news", ChannelMode.BROADCAST) for _ in range(MANY)]
    return lambda s: s.suspend_instances([(lease, [ChannelWait("news", "r", after=DAY)]) for lease in leases])


@operation
async def next_due_at(on: Stage) -> Act:
    await _asleep(on)
    return lambda s: s.next_due_at()


@operation
async def next_work_at(on: Stage) -> Act:
    await on.free()
    return lambda s: s.next_work_at()


# Channels.


@operation
async def publish_to_channel(on: Stage) -> Act:
    await on.waiting("news", ChannelMode.BROADCAST)
    return lambda s: s.publish_to_channel("news", b"{}")


@operation
async def publish_to_channel__leased(on: Stage) -> Act:
    lease = await on.leased()
    return lambda s: s.publish_to_channel("news", b"{}", lease=lease)


@operation
async def publish_to_channel__with_an_id(on: Stage) -> Act:
    return lambda s: s.publish_to_channel("news", b"{}", message_id="key", source="web")


@operation
async def publish_messages(on: Stage) -> Act:
    await on.waiting("news", ChannelMode.BROADCAST)
    return lambda s: s.publish_messages([OutgoingMessage(name, b"{}") for name in ("stock", "news", "stock")])


@operation
async def subscribe_to_channel(on: Stage) -> Act:
    lease = await on.leased()
    return lambda s: s.subscribe_to_channel(lease.instance_id, "news", ChannelMode.BROADCAST, lease=lease)


@operation
async def unsubscribe_from_channel(on: Stage) -> Act:
    lease = await subscribed(on, "news", ChannelMode.BROADCAST)
    return lambda s: s.unsubscribe_from_channel(lease.instance_id, "news", lease=lease)


@operation
async def get_channel_subscription(on: Stage) -> Act:
    lease = await subscribed(on, "news", ChannelMode.BROADCAST)
    return lambda s: s.get_channel_subscription(lease.instance_id, "news")


@operation
async def get_channel_mode(on: Stage) -> Act:
    await subscribed(on, "news", ChannelMode.BROADCAST)
    return lambda s: s.get_channel_mode("news")


@operation
async def register_channel_receive_and_release_lock(on: Stage) -> Act:
    lease = await subscribed(on, "news", ChannelMode.BROADCAST)
    return lambda s: s.register_channel_receive_and_release_lock(
        lease.instance_id, "news", "w", "r", after=DAY, lease=lease
    )


@operation
async def register_channel_receive_and_release_lock__ready(on: Stage) -> Act:
    lease = await subscribed(on, "stock", ChannelMode.COMPETING)
    await published(on, "stock")
    return lambda s: s.register_channel_receive_and_release_lock(lease.instance_id, "stock", "w", "r", lease=lease)


@operation
async def get_pending_channel_messages(on: Stage) -> Act:
    await published(on, "stock")
    return lambda s: s.get_pending_channel_messages("stock")


@operation
async def get_pending_channel_messages_for_instance(on: Stage) -> Act:
    lease = await subscribed(on, "news", ChannelMode.BROADCAST)
    await published(on, "news")
    return lambda s: s.get_pending_channel_messages_for_instance(lease.instance_id, "news")


@operation
async def claim_channel_message(on: Stage) -> Act:
    lease = await subscribed(on, "stock", ChannelMode.COMPETING)
    message = await published(on, "stock")
    return lambda s: s.claim_channel_message(message.id, lease.instance_id, lease=lease)


@operation
async def delete_channel_message(on: Stage) -> Act:
    lease = await on.leased()
    message = await published(on, "stock")
    return lambda s: s.delete_channel_message(message.id, lease=lease)


@operation
async def update_delivery_cursor(on: Stage) -> Act:
    lease = await subscribed(on, "news", ChannelMode.BROADCAST)
    message = await published(on, "news")
    return lambda s: s.update_delivery_cursor(lease.instance_id, "news", message.id, lease=lease)


@operation
async def get_delivery_cursor(on: Stage) -> Act:
    lease = await subscribed(on, "news", ChannelMode.BROADCAST)
    return lambda s: s.get_delivery_cursor(lease.instance_id, "news")


@operation
async def get_channel_waits(on: Stage) -> Act:
    instance_id = await on.waiting("news", ChannelMode.BROADCAST)
    return lambda s: s.get_channel_waits(instance_id)


@operation
async def get_waits(on: Stage) -> Act:
    instance_id = await on.waiting("news", ChannelMode.BROADCAST)
    return lambda s: s.get_waits([instance_id])


@operation
async def pending_waits(on: Stage) -> Act:
    lease = await subscribed(on, "news", ChannelMode.BROADCAST)
    await on.storage.publish_to_channel("news", b'{"n": 1}')
    waits = [ChannelWait("news", "any"), ChannelWait("news", "one", where={"n": 1})]
    return lambda s: s.pending_waits(lease.instance_id, waits)


@operation
async def clear_channel_waiting_state(on: Stage) -> Act:
    waiting = await on.waiting("news", ChannelMode.BROADCAST)
    return lambda s: s.clear_channel_waiting_state(waiting, "news")


# Deliveries.


@operation
async def get_channel_subscribers_waiting(on: Stage) -> Act:
    await on.waiting("news", ChannelMode.BROADCAST)
    return lambda s: s.get_channel_subscribers_waiting("news", limit=10)


@operation
async def deliver_channel_message(on: Stage) -> Act:
    reader = await on.waiting("news", ChannelMode.BROADCAST)
    message = await published(on, "news")
    return lambda s: s.deliver_channel_message(reader, message)


@operation
async def deliver_channel_message__leased(on: Stage) -> Act:
    lease = await subscribed(on, "stock", ChannelMode.COMPETING)
    message = await published(on, "stock")
    return lambda s: s.deliver_channel_message(lease.instance_id, message, lease=lease, activity_id="r")


@operation
async def deliver_channel_message__leased_for_values(on: Stage) -> Act:
    lease = await subscribed(on, "news", ChannelMode.BROADCAST)
    for n in range(MANY):
        message = await on.storage.publish_to_channel("news", f'{{"n": {n}}}'.encode())
    offered = ChannelMessage(message, "news", "")
    return lambda s: s.deliver_channel_message(lease.instance_id, offered, lease=lease, activity_id="r", where={"n": 1})


@operation
async def deliver_channel_message_with_lock(on: Stage) -> Act:
    worker = await on.waiting("stock", ChannelMode.COMPETING)
    await published(on, "stock")
    return lambda s: s.deliver_channel_message_with_lock(worker, "stock", ChannelMessage(0, "stock", ""), "w", 30)


@operation
async def deliver_pending(on: Stage) -> Act:
    for channel, mode in (("stock", ChannelMode.COMPETING), ("news", ChannelMode.BROADCAST)):
        await on.waiting(channel, mode)
        await published(on, channel)
    return lambda s: s.deliver_pending()


@operation
async def deliver_pending__for_values(on: Stage) -> Act:
    for n in range(MANY):
        await _picky(on, n, n + 1)
    for n in range(MANY):
        await on.storage.publish_to_channel("news", f'{{"n": {n}}}'.encode())
    lease = await subscribed(on, "news", ChannelMode.BROADCAST)
    await on.storage.db().execute("UPDATE channel_subscriptions SET cursor_message_id = 0")
    await on.storage.db().execute("UPDATE channel_delivery_cursors SET last_delivered_id = 0")
    assert (await on.storage.suspend(lease, [ChannelWait("news", "r", where={"n": -1})])).suspended
    return lambda s: s.deliver_pending()  # the keys are made: that is a commit of its own, and no delivery


async def _late(on: Stage, count: int) -> list[tuple[str, str]]:
    """Instances whose wait has run out."""
    waits = [(await on.waiting("news", ChannelMode.BROADCAST, after=SOON), "news") for _ in range(count)]
    while len(await on.storage.find_expired_channel_subscriptions()) < count:
        pass
    return waits


@operation
async def expire_channel_wait(on: Stage) -> Act:
    ((late, channel),) = await _late(on, 1)
    return lambda s: s.expire_channel_wait(late, channel)


@operation
async def expire_channel_waits(on: Stage) -> Act:
    waits = await _late(on, MANY)
    return lambda s: s.expire_channel_waits(waits)


@operation
async def find_expired_channel_subscriptions(on: Stage) -> Act:
    await _late(on, 1)
    return lambda s: s.find_expired_channel_subscriptions()


@operation
async def cleanup_old_channel_messages(on: Stage) -> Act:
    for _ in range(MANY):
        await on.storage.publish_to_channel("gone", b"{}")
    await on.storage.db().execute(f"UPDATE channel_messages SET published_at = {OLD}")

    async def act(s: SQLStorage) -> int:
        s._swept_to = ""
        return await s.cleanup_old_channel_messages(DAY, force=True)

    return act
