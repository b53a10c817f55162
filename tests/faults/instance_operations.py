"""Operations on runs: their locks, their rows, their histories."""

import asyncio
from dataclasses import replace

from perdure.model.records import (
    ChannelMode,
    CompensationEntry,
    HistoryEvent,
    ListInstancesOptions,
    ParentLink,
    TimerSubscription,
    TimerWait,
    WorkflowInstance,
)
from perdure.model.states import WorkflowStatus
from tests.faults.operations import DAY, MANY, OLD, Act, event_of, operation, some_leases, subscribed
from tests.storage.plans.operations import Stage

# Locks.


@operation
async def try_acquire_lock(on: Stage) -> Act:
    free = await on.free()
    return lambda s: s.try_acquire_lock(free, "w", 30)


@operation
async def try_acquire_lock__held(on: Stage) -> Act:
    lease = await on.leased()
    return lambda s: s.try_acquire_lock(lease.instance_id, "x", 30)


@operation
async def acquire_locks(on: Stage) -> Act:
    many = [await on.free() for _ in range(MANY)]
    return lambda s: s.acquire_locks(many, "w", 30)


@operation
async def claim_instances(on: Stage) -> Act:
    many = [await on.free() for _ in range(MANY)]
    return lambda s: s.claim_instances(many, "w", 30, limit=MANY)


@operation
async def refresh_lock(on: Stage) -> Act:
    lease = await on.leased()
    return lambda s: s.refresh_lock(lease.instance_id, "w", 30, lease=lease)


@operation
async def refresh_locks(on: Stage) -> Act:
    leases = await some_leases(on)
    return lambda s: s.refresh_locks(leases, 30)


@operation
async def release_lock(on: Stage) -> Act:
    lease = await on.leased()
    return lambda s: s.release_lock(lease.instance_id, "w", lease=lease)


@operation
async def cleanup_stale_locks(on: Stage) -> Act:
    for _ in range(2):
        lease = await on.leased()
        await on.storage.refresh_lock(lease.instance_id, "w", 0.001, lease=lease)
    await asyncio.sleep(0.01)  # until both are over: SQLite's clock counts milliseconds
    return lambda s: s.cleanup_stale_locks()


# Instances.


@operation
async def create_instance(on: Stage) -> Act:
    return lambda s: s.create_instance(WorkflowInstance("made", "wf"))


@operation
async def create_instance__leased(on: Stage) -> Act:
    return lambda s: s.create_instance(WorkflowInstance("made", "wf"), worker_id="w")


@operation
async def create_instance__whole(on: Stage) -> Act:
    made = WorkflowInstance("made", "wf", status=WorkflowStatus.WAITING_FOR_TIMER)
    events = [HistoryEvent("made", f"first:{n}", "Noted", b"{}") for n in range(2)]
    return lambda s: s.create_instance(made, events=events, timers=[TimerWait("t", "t", after=DAY)])


@operation
async def create_instance__child(on: Stage) -> Act:
    lease = await on.leased()
    parent = ParentLink(lease, "ends", CompensationEntry(lease.instance_id, "step:1", "undo"))
    link = HistoryEvent("made", "link", "Noted", b"{}")
    return lambda s: s.create_instance(WorkflowInstance("made", "wf"), events=[link], parent=parent)


@operation
async def define_workflows(on: Stage) -> Act:
    return lambda s: s.define_workflows({"wf": "h1", "other": "h2"})


@operation
async def create_instances(on: Stage) -> Act:
    return lambda s: s.create_instances([WorkflowInstance(f"made-{n}", "wf") for n in range(MANY)])


@operation
async def create_instances__one_exists(on: Stage) -> Act:
    taken = await on.free()
    made = [WorkflowInstance(id, "wf-of-" + id, b"{}") for id in ("made-1", taken, "made-2")]
    return lambda s: s.create_instances(made, worker_id="w")


@operation
async def get_instance(on: Stage) -> Act:
    free = await on.free()
    return lambda s: s.get_instance(free)


@operation
async def get_instances(on: Stage) -> Act:
    ids = [await on.free(), "absent"]
    return lambda s: s.get_instances(ids)


@operation
async def update_instance_status(on: Stage) -> Act:
    lease = await on.leased()
    return lambda s: s.update_instance_status(lease.instance_id, WorkflowStatus.FAILED, "broken", lease=lease)


@operation
async def update_instance_activity(on: Stage) -> Act:
    lease = await on.leased()
    return lambda s: s.update_instance_activity(lease.instance_id, "step:1", lease=lease)


@operation
async def update_instance_output(on: Stage) -> Act:
    lease = await on.leased()
    return lambda s: s.update_instance_output(lease.instance_id, b"{}", lease=lease)


@operation
async def complete_and_release(on: Stage) -> Act:
    lease = await on.leased()
    return lambda s: s.complete_and_release(lease, b"{}")


@operation
async def complete_instances(on: Stage) -> Act:
    leases = await some_leases(on)
    return lambda s: s.complete_instances([(lease, b"{}") for lease in leases])


@operation
async def complete_instances__one_refused(on: Stage) -> Act:
    leases = await some_leases(on)
    await on.storage.release_lock(leases[1].instance_id, "w")
    await on.storage.register_timer_subscription(TimerSubscription(leases[0].instance_id, "t"), after=DAY)
    return lambda s: s.complete_instances([(lease, b"{}") for lease in leases])


@operation
async def cancel_instance(on: Stage) -> Act:
    instance_id = await on.waiting("news", ChannelMode.BROADCAST)
    await on.storage.join_group(instance_id, "few")
    return lambda s: s.cancel_instance(instance_id)


@operation
async def cancel_instance__compensate(on: Stage) -> Act:
    free = await on.free()
    return lambda s: s.cancel_instance(free, compensate=True)


@operation
async def list_instances(on: Stage) -> Act:
    await on.free()
    return lambda s: s.list_instances(ListInstancesOptions(status_filter=WorkflowStatus.RUNNING))


@operation
async def find_resumable_workflows(on: Stage) -> Act:
    await on.free()
    return lambda s: s.find_resumable_workflows(workflow_names=["wf"])


@operation
async def delete_instances(on: Stage) -> Act:
    for lease in await some_leases(on):
        await on.storage.append_history(event_of(lease), lease=lease)
        await on.storage.complete_and_release(lease, b"{}")
    await on.storage.db().execute(f"UPDATE workflow_instances SET updated_at = {OLD}")
    return lambda s: s.delete_instances(DAY)


@operation
async def delete_ended(on: Stage) -> Act:
    leases = await some_leases(on)
    for lease in leases:
        await on.storage.append_history(event_of(lease), lease=lease)
        await on.storage.complete_and_release(lease, b"{}")
    return lambda s: s.delete_ended([lease.instance_id for lease in leases])


@operation
async def count_instances(on: Stage) -> Act:
    await on.free()
    return lambda s: s.count_instances(ListInstancesOptions(workflow_name="wf"), limit=5)


@operation
async def list_workflow_names(on: Stage) -> Act:
    await on.free()
    return lambda s: s.list_workflow_names()


@operation
async def list_ended(on: Stage) -> Act:
    await on.storage.cancel_instance((await on.leased()).instance_id)
    return lambda s: s.list_ended()


@operation
async def get_events(on: Stage) -> Act:
    leases = await some_leases(on)
    for lease in leases:
        await on.storage.append_history(event_of(lease), lease=lease)
    return lambda s: s.get_events([lease.instance_id for lease in leases], [event_of(leases[0]).activity_id])


# Stuck runs.


@operation
async def back_off(on: Stage) -> Act:
    lease = await on.leased()
    return lambda s: s.back_off(lease, 2, "ValueError: no", 60)


@operation
async def get_stuck(on: Stage) -> Act:
    lease = await on.leased()
    await on.storage.back_off(lease, 2, "ValueError: no", 60)
    return lambda s: s.get_stuck([lease.instance_id])


@operation
async def list_stuck(on: Stage) -> Act:
    await on.storage.back_off(await on.leased(), 2, "ValueError: no", 60)
    return lambda s: s.list_stuck()


@operation
async def clear_stuck(on: Stage) -> Act:
    lease = await on.leased()
    await on.storage.back_off(lease, 2, "ValueError: no", 60)
    return lambda s: s.clear_stuck([lease.instance_id])


# History.


@operation
async def append_history(on: Stage) -> Act:
    lease = await on.leased()
    return lambda s: s.append_history(event_of(lease), lease=lease)


@operation
async def append_history__again(on: Stage) -> Act:
    lease = await on.leased()
    await on.storage.append_history(event_of(lease), lease=lease)
    return lambda s: s.append_history(event_of(lease), lease=lease)


@operation
async def append_histories(on: Stage) -> Act:
    leases = await some_leases(on)
    return lambda s: s.append_histories([(event_of(lease), lease) for lease in leases])


@operation
async def append_and_complete(on: Stage) -> Act:
    leases = await some_leases(on)
    events = [(event_of(lease), lease) for lease in leases[1:]]
    return lambda s: s.append_and_complete(events, [(lease, b"{}") for lease in leases[:-1]])


@operation
async def append_histories__one_refused(on: Stage) -> Act:
    leases = await some_leases(on)
    await on.storage.append_history(replace(event_of(leases[1]), event_data=b"[]"), lease=leases[1])
    return lambda s: s.append_histories([(event_of(lease), lease) for lease in leases])


@operation
async def append_and_complete__one_refused(on: Stage) -> Act:
    leases = await some_leases(on)
    await on.storage.append_history(replace(event_of(leases[1]), event_data=b"[]"), lease=leases[1])
    events = [(event_of(lease), lease) for lease in leases]
    return lambda s: s.append_and_complete(events, [(lease, b"{}") for lease in leases])


@operation
async def get_history_paginated(on: Stage) -> Act:
    lease = await on.leased()
    await on.storage.append_history(event_of(lease), lease=lease)
    return lambda s: s.get_history_paginated(lease.instance_id, 0, 10)


@operation
async def get_history_count(on: Stage) -> Act:
    free = await on.free()
    return lambda s: s.get_history_count(free)


@operation
async def get_last_event(on: Stage) -> Act:
    lease = await on.leased()
    await on.storage.append_history(event_of(lease), lease=lease)
    return lambda s: s.get_last_event(lease.instance_id, "ActivityCompleted")


@operation
async def archive_history(on: Stage) -> Act:
    lease = await on.leased()
    await on.storage.append_history(event_of(lease), lease=lease)
    return lambda s: s.archive_history(lease.instance_id, lease=lease)


@operation
async def get_archived_history(on: Stage) -> Act:
    lease = await on.leased()
    await on.storage.append_history(event_of(lease), lease=lease)
    await on.storage.archive_history(lease.instance_id, lease=lease)
    return lambda s: s.get_archived_history(lease.instance_id)


@operation
async def recur_instance(on: Stage) -> Act:
    lease = await subscribed(on, "mail", ChannelMode.DIRECT)
    await on.storage.append_history(event_of(lease), lease=lease)
    await on.storage.register_timer_subscription(TimerSubscription(lease.instance_id, "t"), after=DAY, lease=lease)
    return lambda s: s.recur_instance(lease.instance_id, b"{}", lease=lease)


@operation
async def cleanup_instance_subscriptions(on: Stage) -> Act:
    lease = await subscribed(on, "news", ChannelMode.BROADCAST)
    await on.storage.register_timer_subscription(TimerSubscription(lease.instance_id, "t"), after=DAY, lease=lease)
    return lambda s: s.cleanup_instance_subscriptions(lease.instance_id, lease=lease)
