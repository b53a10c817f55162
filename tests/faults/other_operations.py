"""Operations on the outbox, groups, locks and workers, and SQL of the caller."""

from datetime import timedelta

from perdure.model.records import CompensationEntry, OutboxEvent, WorkflowInstance
from perdure.storage.stores import SQLStorage
from tests.faults.operations import DAY, OLD, Act, operation
from tests.storage.plans.operations import Stage

# Outbox.


async def _added(on: Stage) -> str:
    await on.storage.add_outbox_event(OutboxEvent("event", "t", "shop", b"{}"))
    return "event"


async def _claimed(on: Stage) -> str:
    await _added(on)
    (event,) = await on.storage.get_pending_outbox_events()
    return event.event_id


@operation
async def add_outbox_event(on: Stage) -> Act:
    lease = await on.leased()
    return lambda s: s.add_outbox_event(OutboxEvent("event", "t", "shop", b"{}"), lease=lease)


@operation
async def get_pending_outbox_events(on: Stage) -> Act:
    await _added(on)
    return lambda s: s.get_pending_outbox_events()


@operation
async def mark_outbox_event_sent(on: Stage) -> Act:
    event = await _claimed(on)
    return lambda s: s.mark_outbox_event_sent(event)


@operation
async def settle_outbox_events(on: Stage) -> Act:
    await _added(on)
    await on.storage.add_outbox_event(OutboxEvent("second", "t", "shop", b"{}"))
    first, second = await on.storage.get_pending_outbox_events(relay_id="relay")
    return lambda s: s.settle_outbox_events(sent=[first.event_id], released=[second.event_id], relay_id="relay")


@operation
async def mark_outbox_event_failed(on: Stage) -> Act:
    event = await _claimed(on)
    return lambda s: s.mark_outbox_event_failed(event)


@operation
async def increment_outbox_attempts(on: Stage) -> Act:
    event = await _claimed(on)
    return lambda s: s.increment_outbox_attempts(event, back_off=timedelta(0))


@operation
async def cleanup_old_outbox_events(on: Stage) -> Act:
    await on.storage.mark_outbox_event_sent(await _claimed(on))
    await on.storage.db().execute(f"UPDATE outbox_events SET published_at = {OLD}")
    return lambda s: s.cleanup_old_outbox_events(DAY)


@operation
async def list_outbox_events(on: Stage) -> Act:
    await _added(on)
    return lambda s: s.list_outbox_events()


@operation
async def requeue_outbox_event(on: Stage) -> Act:
    event = await _claimed(on)
    await on.storage.mark_outbox_event_failed(event)
    return lambda s: s.requeue_outbox_event(event)


# Others.


@operation
async def add_compensation(on: Stage) -> Act:
    lease = await on.leased()
    return lambda s: s.add_compensation(CompensationEntry(lease.instance_id, "step:1", "undo"), lease=lease)


@operation
async def get_compensations(on: Stage) -> Act:
    lease = await on.leased()
    await on.storage.add_compensation(CompensationEntry(lease.instance_id, "step:1", "undo"), lease=lease)
    return lambda s: s.get_compensations(lease.instance_id)


@operation
async def join_group(on: Stage) -> Act:
    lease = await on.leased()
    return lambda s: s.join_group(lease.instance_id, "few", lease=lease)


@operation
async def leave_group(on: Stage) -> Act:
    lease = await on.leased()
    await on.storage.join_group(lease.instance_id, "few", lease=lease)
    return lambda s: s.leave_group(lease.instance_id, "few", lease=lease)


@operation
async def leave_all_groups(on: Stage) -> Act:
    lease = await on.leased()
    await on.storage.join_group(lease.instance_id, "few", lease=lease)
    return lambda s: s.leave_all_groups(lease.instance_id, lease=lease)


@operation
async def get_group_members(on: Stage) -> Act:
    await on.storage.join_group(await on.free(), "few")
    return lambda s: s.get_group_members("few")


@operation
async def try_acquire_system_lock(on: Stage) -> Act:
    return lambda s: s.try_acquire_system_lock("duty", "w", 30)


@operation
async def release_system_lock(on: Stage) -> Act:
    await on.storage.try_acquire_system_lock("duty", "w", 30)
    return lambda s: s.release_system_lock("duty", "w")


@operation
async def cleanup_expired_system_locks(on: Stage) -> Act:
    await on.storage.try_acquire_system_lock("duty", "w", 30)
    await on.storage.release_system_lock("duty", "w")
    return lambda s: s.cleanup_expired_system_locks()


@operation
async def beat_worker(on: Stage) -> Act:
    return lambda s: s.beat_worker("worker", b"{}")


@operation
async def beat_worker__gone(on: Stage) -> Act:
    await on.storage.beat_worker("worker")
    return lambda s: s.beat_worker("worker", gone=True)


@operation
async def list_workers(on: Stage) -> Act:
    await on.storage.beat_worker("worker")
    return lambda s: s.list_workers(alive_within=DAY)


@operation
async def now(on: Stage) -> Act:
    return lambda s: s.now()


@operation
async def pending_migrations(on: Stage) -> Act:
    return lambda s: s.pending_migrations()


# What callers do without the storage's operations.


@operation
async def transaction__nested(on: Stage) -> Act:
    async def act(s: SQLStorage) -> None:
        async with s.transaction():
            await s.create_instance(WorkflowInstance("outer", "wf"))
            async with s.transaction():
                await s.join_group("outer", "few")

    return act


@operation
async def transaction__of_own_statements(on: Stage) -> Act:
    async def act(s: SQLStorage) -> list[object]:
        async with s.transaction() as conn:
            await conn.execute("INSERT INTO system_locks (lock_name) VALUES ('own')")
            await conn.execute("INSERT INTO system_locks (lock_name) VALUES ('other')")
            return [*await conn.fetch("SELECT lock_name FROM system_locks")]

    return act


@operation
async def db__execute(on: Stage) -> Act:
    return lambda s: s.db().execute("INSERT INTO system_locks (lock_name) VALUES ('own')")


@operation
async def db__fetch(on: Stage) -> Act:
    return lambda s: s.db().fetch("SELECT lock_name FROM system_locks")


@operation
async def initialize__again(on: Stage) -> Act:
    return lambda s: s.initialize()
